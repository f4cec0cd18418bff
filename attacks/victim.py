"""What every attack needs: a portfolio, a release that holds before it is touched, and the tools of a forger."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.numpy import save_file
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.errors import CertificateError, DpmergeError
from dpmerge.files import canonical, sha256
from dpmerge.release import CARD, NAME, RECORD, CardTemplate, GuaranteeForm, Signer, draft, model_card, record_of

Change = Callable[[dict[str, Any]], None]
DATASET, DELTA = "victim-data", "1e-5"
NOISE = {"leaky": 4.0, "safe": 40.0}
WEIGHTS = "leaky=0.25,safe=0.75"


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code and everything it said."""

    code: int
    text: str


def dpmerge(*arguments: str | Path, cache: str | Path = "off") -> Outcome:
    """A command as a user gives it."""
    with patch.dict(os.environ, {"DPMERGE_CACHE": str(cache)}):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, DpmergeError):
        return Outcome(2, f"error: {result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.output)


# --- the victim -----------------------------------------------------------------------------------------------------------


def record(name: str, noise: float, **changes: Any) -> dict[str, Any]:
    """A full-batch DP-SGD run with randomness of its own."""
    mechanism = {
        "kind": "dp-sgd",
        "run": f"run-{name}",
        "noise_fingerprint": f"noise-{name}",
        "sampler_fingerprint": f"sampler-{name}",
        "optimizer": "sgd",
        "sampling": {"scheme": "full-batch"},
        "expected_batch": 1000,
        "noise_multiplier": noise,
        "clip": 1.0,
        "clipping": "flat",
        "phases": [{"steps": 10, "learning_rate": 0.1}],
        "smoothness": 0.2,
        "convex": None,
    }
    return {"schema": 1, "dataset": DATASET, "adjacency": "add-remove", "mechanism": {**mechanism, **changes}}


def portfolio(folder: Path, **changes: Mapping[str, Any]) -> Path:
    """Two models trained on one dataset; `changes` by model name go into the records."""
    for number, (name, noise) in enumerate(NOISE.items()):
        place = folder / "runs" / name
        place.mkdir(parents=True)
        values = np.random.default_rng(number).normal(scale=1 / 64, size=(64, 32)).astype(np.float32)
        save_file({"weight": values, "bias": values[0].copy()}, place / "model.safetensors", {"format": "pt"})
        (place / "config.json").write_text('{"model_type": "linear"}')
        (place / "record.json").write_text(json.dumps(record(name, noise, **changes.get(name, {}))))
    return folder / "runs"


def release(
    folder: Path, rule: str = "combination", name: str = "released", weights: str = WEIGHTS, *options: str | Path
) -> Path:
    """A release that holds, from the portfolio in `folder`."""
    runs = folder / "runs" if (folder / "runs").exists() else portfolio(folder)
    out = folder / name
    made = dpmerge("merge", runs, "--rule", rule, "--weights", weights, "--delta", DELTA, "--out", out, *options)
    assert made.code == 0, made.text
    untouched = dpmerge("verify", out, "--portfolio", runs)
    assert untouched.code == 0, f"the victim must hold before it is attacked: {untouched.text}"
    return out


def keys(folder: Path, name: str = "key") -> Path:
    """A new pair of keys."""
    made = dpmerge("tools", "keys", folder / name)
    assert made.code == 0, made.text
    return folder / name


# --- the forger -----------------------------------------------------------------------------------------------------------


def certificate(out: Path) -> dict[str, Any]:
    """The certificate as plain data."""
    found: dict[str, Any] = json.loads((out / NAME).read_text())
    return found


def edit(out: Path, change: Change) -> None:
    """Change the certificate and leave it at that."""
    content = certificate(out)
    change(content)
    _write(out, content)


def forge(out: Path, change: Change, *, guarantee: bool = False, signer: Signer | None = None) -> None:
    """Change the certificate and everything in the folder that follows from it: hashes of records, model card, own hash.

    With `guarantee`, also the ε that follows from what was changed; with a key, sign it.
    """
    content = certificate(out)
    change(content)
    for form in content["records"].values():
        form["sha256"] = sha256(canonical(form["record"]))
    plain = {key: value for key, value in content.items() if key not in ("sha256", "signature")}
    try:
        made = draft(plain)
        if guarantee:
            answer = made.numerics.answer(made.rule.build(made.portfolio()), made.guarantee.epsilon, made.guarantee.delta)
            plain["guarantee"] = GuaranteeForm.of(answer).model_dump(mode="json")
        _fit_record(out, plain)
        section = model_card(draft(plain))
        (out / CARD).write_text(CardTemplate().page(section, {}))
        plain["card"] = sha256(section.encode())
    except CertificateError:
        pass  # what contradicts itself has no card; the forger tries it all the same
    body = canonical(plain)
    signature = None if signer is None else {"key": signer.public, "value": signer.sign(body)}
    _write(out, {**plain, "sha256": sha256(body), "signature": signature})


def _fit_record(out: Path, plain: dict[str, Any]) -> None:
    """The record by which the release joins portfolios, as it follows from what was changed."""
    fitted = record_of(draft(plain))
    if RECORD in plain["outputs"] and fitted is not None:
        (out / RECORD).write_bytes(fitted)
        plain["outputs"][RECORD] = sha256(fitted)


def _write(out: Path, content: Mapping[str, Any]) -> None:
    (out / NAME).write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


# --- the outcome ----------------------------------------------------------------------------------------------------------


def stopped(outcome: Outcome, because: str, code: int = 1) -> None:
    """The command must have refused, with this reason."""
    assert outcome.code == code, f"exit code {outcome.code} instead of {code}: {outcome.text}"
    assert because in outcome.text, f"refused, but not because {because!r}: {outcome.text}"


def verified(out: Path, *options: str | Path) -> Outcome:
    """What `dpmerge verify` says."""
    return dpmerge("verify", out, *options)
