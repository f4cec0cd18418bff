"""The numbers of docs/review.md are those of the kept files that it names, and it has no others."""

from __future__ import annotations

import json
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PROSE, _, TABLE = (ROOT / "docs" / "review.md").read_text(encoding="utf-8").partition("## Numbers on this page")
ROWS = re.findall(r"^\| ([\d.]+) \| `([\w./-]+)` \| (.+) \|$", TABLE, flags=re.MULTILINE)
STATED = {"0.8", "0.01"}  # a weight, and a δ: settings, which nothing measured


def kept(file: str, where: str) -> Any:
    """By keys, places in lists, and `field=value` for the one row of a list that has it; errors of means are computed."""
    found: Any = json.loads((ROOT / "lab" / "results" / file).read_text(encoding="utf-8"))
    for key in where.split(" / "):
        if key == "standard error" and "std" in found:
            found = found["std"] / found["runs"] ** 0.5
        elif isinstance(found, dict):
            found = found[key]
        elif key.isdigit():
            found = found[int(key)]
        else:
            name, _, value = key.partition("=")
            (found,) = [row for row in found if str(row[name]) == value]
    return found


@pytest.mark.parametrize(("number", "file", "where"), ROWS, ids=[f"{number} {where}" for number, _, where in ROWS])
def test_a_number_is_the_kept_one(number: str, file: str, where: str) -> None:
    """Of audits, claims and proved bounds are rounded up, and what was measured down."""
    way = ROUND_HALF_EVEN if file != "audit/summary.json" else ROUND_FLOOR if where.endswith("measured") else ROUND_CEILING
    assert Decimal(number) == Decimal(kept(file, where)).quantize(Decimal(number), rounding=way)
    assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", PROSE)


def test_every_number_of_the_page_is_in_its_table() -> None:
    cited = re.sub(r"§[\d.]+\d|(?:Thm|Theorem) [\d.]+\d|arXiv [\d.]+", "", PROSE)
    found = set(re.findall(r"(?<![\w.-])\d+\.\d+", cited))
    assert len(found) > 40 and found == ({number for number, *_ in ROWS if "." in number} | STATED)


def test_the_page_says_how_it_rounds() -> None:
    """Up only where every such number of the table is."""
    said = " ".join(PROSE.split())
    assert "Of audits, claims and proved bounds are rounded up and measured lower bounds down" in said
    assert "all other numbers, an ε of a portfolio too, are rounded to the nearest digit" in said


def test_counts_of_weights() -> None:
    """Where the draw has the smaller ε at equal error: never by the papers' bounds, mostly by the exact law."""
    numbers = kept("mean-estimation/mean-estimation.json", "numbers")
    drawn, averaged = numbers["selection"], numbers["combination of the same error as selection"]

    def smaller(by: str, other: str) -> int:
        return sum(one < two for one, two in list(zip(drawn[by], averaged[other], strict=True))[1:-1])

    inner = len(drawn["weight"]) - 2
    assert smaller("pld", "pld") == smaller("rdp", "rdp") == 0 and f"at all {inner} inner weights" in PROSE
    assert f"at {smaller('exact', 'pld')} of the {inner} weights" in PROSE
    assert kept("mnist/mnist.json", "configuration / repetitions") == 5


def test_error_bars_of_resnets() -> None:
    scores = [one["test accuracy"] for one in kept("cifar10/cifar10.json", "numbers / settings").values()]
    twice = [100 * one["std"] / 2**0.5 for one in scores if one["runs"] == 2]
    assert len(twice) == 6 and [one["runs"] for one in scores].count(1) == len(scores) - 6 == 11
    assert 0.2 < max(twice) < 0.3
    assert "with standard errors of at most three tenths of a point, eleven others once" in " ".join(PROSE.split())
