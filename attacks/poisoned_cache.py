"""Whoever may write to the cache of answers puts a tiny ε there, with a valid checksum."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attacks.victim import DELTA, WEIGHTS, certificate, dpmerge, forge, portfolio, release, stopped
from dpmerge.cache import cache_entries
from dpmerge.release import Certificate


def poison(cache: Path) -> int:
    """Every answer becomes a thousandth of itself."""
    poisoned = 0
    for path in cache_entries(cache):
        _, _, body = path.read_bytes().partition(b"\n")
        answer = json.loads(body)
        if isinstance(answer, dict) and "epsilon" in answer:
            answer["epsilon"] /= 1000
            fresh = json.dumps(answer, sort_keys=True, separators=(",", ":")).encode()
            path.write_bytes(hashlib.sha256(fresh).hexdigest().encode() + b"\n" + fresh)
            poisoned += 1
    return poisoned


def ask_like_a_recheck(out: Path, cache: Path) -> None:
    """Put the very question that `dpmerge verify` will put, so that its answer lies in the cache."""
    made = Certificate.parse((out / "certificate.json").read_bytes(), "certificate.json")
    with patch.dict(os.environ, {"DPMERGE_CACHE": str(cache)}):
        made.numerics.answer(made.rule.build(made.portfolio()), made.guarantee.epsilon, made.guarantee.delta)


def attack(folder: Path) -> str:
    """Before the release, and before the recheck of a certificate that states the tiny ε."""
    cache, runs, out = folder / "cache", portfolio(folder), folder / "poisoned"
    question = ("--rule", "selection", "--weights", WEIGHTS, "--delta", DELTA)
    honest = certificate(release(folder, "selection"))["guarantee"]["epsilon"]
    assert dpmerge("account", runs, *question, cache=cache).code == 0
    assert poison(cache) > 0
    shown = json.loads(dpmerge("account", runs, *question, "--json", cache=cache).text)["epsilon"]
    assert shown < honest / 100, "the cache was not used at all, so this attack says nothing"
    assert dpmerge("merge", runs, *question, "--out", out, cache=cache).code == 0
    assert certificate(out)["guarantee"]["epsilon"] == honest

    def tiny(content: dict[str, Any]) -> None:
        content["guarantee"]["epsilon"] = honest / 1000

    again = folder / "another-cache"
    ask_like_a_recheck(out, again)
    assert poison(again) > 0
    forge(out, tiny)
    stopped(dpmerge("verify", out, cache=again), "the guarantee's epsilon is certified as")
    return "what is certified, and what is rechecked, is computed afresh"
