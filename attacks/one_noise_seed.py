"""Two runs share one noise seed: their noise could cancel in an average."""

from __future__ import annotations

import json
from pathlib import Path

from attacks.victim import DELTA, WEIGHTS, dpmerge, portfolio, stopped


def attack(folder: Path) -> str:
    """The same starting state of the noise, then of the sampler; then the fingerprint is left out."""
    for number, stated in enumerate(("noise_fingerprint", "sampler_fingerprint")):
        runs = portfolio(folder / str(number), leaky={stated: "one seed"}, safe={stated: "one seed"})
        out = folder / str(number) / "out"
        for rule in ("combination", "joint"):
            made = dpmerge("merge", runs, "--rule", rule, "--weights", WEIGHTS, "--delta", DELTA, "--out", out)
            stopped(made, f"are different runs with the same {stated}", code=2)
            assert not out.exists()
    runs, out = portfolio(folder / "none", leaky={"noise_fingerprint": None}), folder / "none" / "out"
    assert dpmerge("merge", runs, "--rule", "joint", "--weights", WEIGHTS, "--delta", DELTA, "--out", out).code == 0
    word = "on the user's word, since no fingerprint was recorded for leaky"
    assert any(word in text for text in json.loads((out / "certificate.json").read_text())["guarantee"]["assumptions"])
    assert word in (out / "README.md").read_text()
    return "equal fingerprints are refused; where one is missing, certificate and model card say on whose word the rest rests"
