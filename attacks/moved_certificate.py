"""The certificate of a private release is moved to a leaky model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from attacks.victim import forge, keys, release, stopped, verified
from dpmerge.files import sha256


def attack(folder: Path) -> str:
    """With the model card; then by a forger who certifies the leaky model's file."""
    key = keys(folder)
    private = release(folder, "selection", "private", "safe=1", "--sign", key)
    leaky = release(folder, "selection", "leaky", "leaky=1", "--sign", key)
    for name in ("certificate.json", "README.md"):
        shutil.copy(private / name, leaky / name)
    stopped(verified(leaky, "--trust", folder / "key.pub"), "model.safetensors was changed")

    def certify_it(certificate: dict[str, Any]) -> None:
        digest = sha256((leaky / "model.safetensors").read_bytes())
        certificate["outputs"]["model.safetensors"] = digest
        certificate["inputs"]["safe"]["model.safetensors"] = digest

    forge(leaky, certify_it)
    stopped(verified(leaky, "--trust", folder / "key.pub"), "the certificate is not signed")
    stopped(verified(leaky, "--portfolio", folder / "runs"), "model 'safe': model.safetensors is not the file")
    return "the model does not have the hash certified; a forged hash lacks the signature, and is not the portfolio's model"
