"""Another noise for an average that was released, so that the mean of both has less of it; and one noise for two averages.

Releases of one average share one secret noise, so that all of them cost what the least noisy one costs. Whoever gets a second
release with independent noise for nothing has half the noise at the same price.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attacks.ledger_victim import LedgerFile
from attacks.victim import DATASET, DELTA, Outcome, certificate, dpmerge, portfolio, stopped
from dpmerge.files import canonical, sha256

EDITED = "was edited or renamed"
WHOLE = "this release would bring the total to"


def attack(folder: Path) -> str:
    """A ladder that is lost, edited, or made that of other weights; and less noise after looking."""
    runs = portfolio(folder, leaky={"convex": "glm"}, safe={"convex": "glm"})
    made = dpmerge("ledger", "new", folder / "ledger.db", "--dataset", DATASET, "--epsilon", "2", "--delta", DELTA)
    assert made.code == 0, made.text
    first = _release(folder, "first", "leaky=1", "--epsilon", "1")
    assert first.code == 0, first.text
    again = _release(folder, "again", "leaky=1", "--epsilon", "1")
    assert again.code == 0, again.text
    assert "adds nothing to the total" in again.text
    assert (folder / "first/model.safetensors").read_bytes() == (folder / "again/model.safetensors").read_bytes()
    (file,) = (runs / ".dpmerge/ladders").iterdir()
    kept = file.read_bytes()
    ladder = json.loads(kept)
    assert ladder["key"] not in (folder / "first/certificate.json").read_text()
    assert certificate(folder / "first")["rule"]["ladder"] == ladder["id"]

    file.unlink()  # lost, or a copy of the portfolio without it
    stopped(_release(folder, "second", "leaky=1", "--epsilon", "1"), WHOLE, code=2)
    for change in ({"key": "0" * 64}, {"root": (1.0).hex()}, {"id": "0" * 32}):
        file.write_text(json.dumps({**ladder, **change}))
        stopped(_release(folder, "second", "leaky=1", "--epsilon", "1"), EDITED, code=2)
    file.write_text(json.dumps(_identified({**ladder, "key": "0" * 64})))
    stopped(_release(folder, "second", "leaky=1", "--epsilon", "1"), WHOLE, code=2)

    file.write_bytes(kept)  # the same noise for other weights, from which both could be computed
    halves = dpmerge("merge", runs, *_how("leaky=0.5,safe=0.5"), "--noise", "0.01", "--out", folder / "halves")
    assert halves.code == 0, halves.text
    (other,) = set((runs / ".dpmerge/ladders").iterdir()) - {file}
    models = json.loads(other.read_text())["models"]
    other.write_text(json.dumps({**ladder, "models": models}))
    stopped(_release(folder, "second", "leaky=0.5,safe=0.5", "--noise", "0.01"), EDITED, code=2)
    other.write_text(json.dumps(_identified({**ladder, "models": models})))
    stopped(_release(folder, "second", "leaky=0.5,safe=0.5", "--noise", "0.01"), WHOLE, code=2)

    below = _release(folder, "second", "leaky=1", "--epsilon", "1.5", "--depends-on-releases")
    stopped(below, "must not be chosen by what noisier releases of it showed", code=2)
    assert not (folder / "second").exists()
    total = dpmerge("ledger", "show", folder / "ledger.db", "--json")
    assert json.loads(total.text)["spent"]["epsilon"] <= 1, total.text
    return "another noise is another release, which the ledger counts; the id of a ladder is a digest of its secret"


def _how(weights: str) -> tuple[str, ...]:
    return "--rule", "combination", "--weights", weights, "--delta", DELTA


def _release(folder: Path, name: str, weights: str, *options: str) -> Outcome:
    ledger = LedgerFile(folder, b"").path
    return dpmerge("merge", folder / "runs", *_how(weights), *options, "--ledger", ledger, "--out", folder / name)


def _identified(ladder: dict[str, Any]) -> dict[str, Any]:
    """With the id that follows, as whoever knows the secret can compute it."""
    steps = sha256(canonical(sorted([step["content"], step["weight"]] for step in ladder["models"].values())))
    return {**ladder, "id": sha256(canonical(["ladder", ladder["key"], ladder["root"], steps]))[:32]}
