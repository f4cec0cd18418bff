"""A folder made to harm whoever rechecks it: links, pipes and devices for files, endless numbers, codes for the terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.victim import Change, certificate, forge, portfolio, release, stopped, verified
from dpmerge.release import CARD, NAME

FORGED = "model\x1b[1A\x1b[2K\x1b]0;it holds\x07\nit holds\r\u202e\x9b2J"


def attack(folder: Path) -> str:
    """Every hostile file in place of every file that is read; then numbers and names that only a certificate can hold."""
    portfolio(folder)
    victims = {rule: release(folder, rule, f"{rule}-victim") for rule in ("joint", "combination")}
    secret = folder / "secret.json"
    secret.write_text("{}")
    kinds: dict[str, Callable[[Path], None]] = {
        "is a link out of": lambda path: path.symlink_to(secret),
        "is not a regular file": os.mkfifo,
        "is a link out of the": lambda path: path.symlink_to("/dev/zero"),
        "larger than": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 41),
    }
    for name in (NAME, CARD, "model.safetensors"):
        for complaint, make in kinds.items():
            out = _copy(victims["joint"], folder)
            (out / name).unlink()
            make(out / name)
            stopped(verified(out, "--portfolio", folder / "runs"), complaint, code=2 if name == NAME else 1)

    for rule, change, complaint in (
        ("combination", _steps(30_000_000), "at most 2,000,000 steps"),
        ("joint", _steps(10**15), "at most 100,000,000 are rechecked"),
        ("joint", _phases(20_000), "phases in its records; at most 10,000"),
        ("joint", _values, "it holds more than 200,000 values"),
    ):
        out = _copy(victims[rule], folder)
        forge(out, change)
        stopped(verified(out), complaint)
        assert certificate(out)["rule"]["rule"] == rule

    out = _copy(victims["joint"], folder)
    forge(out, lambda content: content["outputs"].update({FORGED: "0" * 64}))
    for options in ((), ("--json",)):
        found = verified(out, *options)
        stopped(found, "model")
        assert all(line.isprintable() for line in found.text.split("\n")), ascii(found.text)
        assert "it holds" not in found.text.splitlines()
    return "only regular files of the folder are read, numbers are bounded, and names are shown with their codes"


def _copy(victim: Path, folder: Path) -> Path:
    out = folder / "attacked"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(victim, out)
    return out


def _mechanisms(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [form["record"]["mechanism"] for form in content["records"].values()]


def _steps(count: int) -> Change:
    def change(content: dict[str, Any]) -> None:
        for mechanism in _mechanisms(content):
            mechanism["phases"][0]["steps"] = count

    return change


def _phases(count: int) -> Change:
    def change(content: dict[str, Any]) -> None:
        steps = [{"steps": 1, "learning_rate": 0.1, "noise_multiplier": 4 + number / count} for number in range(count)]
        _mechanisms(content)[0]["phases"] = steps

    return change


def _values(content: dict[str, Any]) -> None:
    content["guarantee"]["assumptions"] = [""] * 300_000
