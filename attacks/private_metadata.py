"""A training left a number about its data where no tensor is: in a file's metadata or name, or in a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from attacks.victim import NOISE, certificate, forge, portfolio, release, stopped, verified
from dpmerge.files import sha256

SECRET = {name: f"0.{number}31415" for number, name in enumerate(NOISE)}


def attack(folder: Path) -> str:
    """Read it in what goes out; guess it, by the digest of the file it is in; and put it back, as a forger who certifies it."""
    runs = portfolio(folder)
    for name, secret in SECRET.items():
        path = _file(runs, name)
        tensors = load_file(runs / name / "model.safetensors")
        (runs / name / "model.safetensors").unlink()
        save_file(tensors, path, {"format": "pt", "private_val_loss": secret, "shared": "private 0.2718"})
        said = {"transformers_version": f"loss-{secret}", "private_val_loss": 0.2718, "hidden_act": "loss of 0.2718"}
        (runs / name / "config.json").write_text(json.dumps({"model_type": "linear", **said}))
    weights = "leaky=0.25,safe=0.75"
    for rule in ("selection", "combination", "joint"):
        out = release(folder, rule, rule, weights)
        drawn = certificate(out)["drawn"]
        for path in out.iterdir():
            content = path.name.encode() + path.read_bytes()
            assert b"0.2718" not in content, f"{path.name} tells what the trainings wrote into every file"
            told = [name for name, secret in SECRET.items() if secret.encode() in content]
            if path.name == "config.json":  # one word in a field that loaders read, of the drawn model
                told = [name for name in told if name != drawn]
            assert not told, f"{path.name} tells what the training of {told} wrote"
            for name in SECRET:
                digest = sha256(_file(runs, name).read_bytes())
                assert digest.encode() not in content, f"{path.name} confirms a guess of what the training of {name} wrote"
        assert verified(out, "--portfolio", runs).code == 0
    out = folder / "joint"
    path = out / "model.safetensors"
    save_file({name: np.array(tensor) for name, tensor in load_file(path).items()}, path, {"format": "pt", "loss": "0.3"})
    forge(out, lambda content: content["outputs"].update({path.name: sha256(path.read_bytes())}))
    stopped(verified(out, "--portfolio", runs), "has other metadata than the merge")
    return "nothing is copied that loads no model, digests of files with metadata are hidden, what a forger adds is found"


def _file(runs: Path, name: str) -> Path:
    """What the training called its checkpoint."""
    return runs / name / f"epoch3-val_loss={SECRET[name]}.safetensors"
