"""One bit of the released model is flipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import forge, release, stopped, verified
from dpmerge.files import sha256


def attack(folder: Path) -> str:
    """Plainly; then by a forger who certifies the hash of the new file."""
    out = release(folder)
    model = out / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    stopped(verified(out), "model.safetensors was changed")

    def certify_it(certificate: dict[str, Any]) -> None:
        certificate["outputs"]["model.safetensors"] = sha256(bytes(content))

    forge(out, certify_it)
    stopped(verified(out, "--portfolio", folder / "runs"), "tensor 'weight': element 2047 is")
    return "the file's hash is not the one certified; with a forged hash, the portfolio tells which element is wrong"
