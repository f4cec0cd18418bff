"""Heads, forks and shards: what docs/results.md shows was measured, and every noise was enough for its target."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import TrainingError
from dpmerge.figures import describe
from dpmerge_lab.experiments import heads_parts
from dpmerge_lab.experiments.catalogue import find
from dpmerge_lab.experiments.heads import AVERAGE, BOLT_ON, COMPOSED, DELTA, DRAWN, FORMULA, HIDDEN, SINGLE
from dpmerge_lab.experiments.heads_pictures import DIFFPRIVLIB, IMAGES, WORDS, kept_beside, pictures
from dpmerge_lab.experiments.results import Options
from tests.builders import dp_sgd

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
QUICK = Options(seeds=1, quick=True, jobs=1)


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "lab" / "results" / name / f"{name}.json").read_text(encoding="utf-8"))
    return found["numbers"]  # type: ignore[no-any-return]


def shown(of: dict[str, Any]) -> str:
    return f"{of['mean']:.4f} ± {of['std'] / of['runs'] ** 0.5:.4f}"


@pytest.mark.parametrize("name", ["heads", "heads-text"])
def test_tables_of_heads(name: str) -> None:
    for way, of in kept(name)["accuracy"].items():
        cells = [
            "—" if mean is None else shown({"mean": mean, "std": std, "runs": of["runs"]})
            for mean, std in zip(of["mean"], of["std"], strict=True)
        ]
        assert of["runs"] == 5 and f"| {way} | {' | '.join(cells)} |" in TEXT


def test_tables_of_forks_and_shards() -> None:
    for epsilon, row in kept("forks")["by target"].items():
        assert row["epsilon"] <= float(epsilon) and row["accuracy"]["runs"] == 5
        assert f"| {epsilon} | {row['noise']:.4f} | {shown(row['accuracy'])} |" in TEXT
    for row in kept("shards").values():
        cells = [shown(row[name]) for name in ("average", "votes", "one part")]
        assert f"| {row['target']:g} | {row['parts']} | {row['noise multiplier']:.3f} | {' | '.join(cells)} |" in TEXT
        assert row["epsilon"] <= row["target"] and row["theorem"] == ("single-run" if row["parts"] == 1 else "shards")


def test_the_picture_of_heads_has_a_look_for_every_row(tmp_path: Path) -> None:
    """And diffprivlib's, where it is kept."""
    folder = ROOT / "lab" / "results" / "heads"
    beside = kept_beside(folder)
    stated = next(line for line in TEXT.splitlines() if line.startswith(f"| {DIFFPRIVLIB} |"))
    assert beside is not None and stated.endswith(f"| {' | '.join(f'{score:.4f}' for score in beside.values())} |")
    drawn = describe(pictures(kept("heads"), IMAGES, beside, DELTA)["frontier"])
    looks = drawn.looks()
    assert len(drawn.panels) == 2 and len({look.colour for look in looks.values()}) == len(looks) == 8
    assert kept_beside(tmp_path) is None is kept_beside(None)
    assert len(describe(pictures(kept("heads-text"), WORDS, None, DELTA)["frontier"]).panels) == 1


def test_quick_heads(tmp_path: Path) -> None:
    shutil.copy(ROOT / "lab" / "results" / "heads" / "diffprivlib.json", tmp_path)
    result = find("heads", replace(QUICK, folder=tmp_path))()
    assert result.pictures["frontier"]["title"].startswith("Linear heads on digits:")
    assert len(result.pictures["frontier"]["panels"]) == 1, "what is kept of diffprivlib is not of the digits"
    numbers = result.numbers
    assert set(numbers["accuracy"]) == {AVERAGE.format(2), SINGLE, COMPOSED, HIDDEN, FORMULA, DRAWN, BOLT_ON}
    best = {way: of["mean"][-1] for way, of in numbers["accuracy"].items()}
    assert all(0.4 < score <= 1 for score in best.values()), best  # guessing has 0.1
    noise = numbers["noise"]
    assert noise["averaged"] == sorted(noise["averaged"], reverse=True) and noise["bolt_on"][0] > noise["bolt_on"][1]


def test_quick_shards_and_forks() -> None:
    for row in find("shards", QUICK)().numbers.values():
        assert row["epsilon"] <= row["target"] and row["average"]["mean"] > 0.4
    forks = find("forks", QUICK)().numbers
    for epsilon, row in forks["by target"].items():
        assert forks["body alone"] < row["epsilon"] <= float(epsilon) * (1 + 1e-5)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "diffprivlib.json").write_text('{"0.5": ')
    with pytest.raises(TrainingError, match=r"diffprivlib\.json: cannot be read"):
        kept_beside(tmp_path)
    body = tmp_path / heads_parts.BODY
    body.mkdir()
    (body / "record.json").write_text(dp_sgd("body", steps=1, sigma=1.0).record.model_dump_json(by_alias=True))
    (body / "body.json").write_text('{"accuracy": ')
    np.savez(tmp_path / "cifar10.npz", y_train=[0, 1], y_test=[1])
    for name, rows in (("features-train-0.npy", 2), ("features-test.npy", 1)):
        np.save(body / name, np.ones((rows, 3)))
    with pytest.raises(TrainingError, match=r"body\.json: cannot be read"):
        heads_parts._read_body(body)
