"""A private WRN-16-4 on CIFAR-10 as a body for other runs: its last layer goes, and the images' features by the rest stay.

`python -m dpmerge_lab.experiments.body_training --data DIR --device cuda --out DIR` trains, with torch, Opacus and pydantic, on
machines with a GPU and little else. It writes `body.safetensors`, `record.json`, `body.json` and `features-*.npy`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dpmerge.errors import DpmergeError
from dpmerge_lab.experiments.cifar10_settings import SEED
from dpmerge_lab.experiments.cifar10_training import as_tensors, software
from dpmerge_lab.tasks.images import load_images
from dpmerge_lab.training.networks import from_seed, wide_resnet
from dpmerge_lab.training.private_sgd import accuracy, device, train
from dpmerge_lab.training.recipe import LabRecipe

# Noise: the least in thousandths for ε = 2 at δ = 1e-5 by loss distributions.
RECIPE = LabRecipe(steps=500, learning_rate=2.0, clip=1.0, noise_multiplier=3.785, rate=4096 / 50_000)
_FILES = 2  # of the features of the training images


def make(data: Path, device_name: str, out: Path) -> None:
    """Train the body, and write it with its record and the features of all images."""
    where = device(device_name)
    torch.set_float32_matmul_precision("high")  # TF32 in convolutions and their gradients, not in sums of clipped gradients
    images, labels, test, answers = as_tensors(load_images(data, "cifar10"), where)
    network, clock = from_seed(wide_resnet, SEED).to(where), time.perf_counter()
    run = f"body-{secrets.token_hex(4)}"
    (made,) = train(network, images, labels, RECIPE, f"cifar10-train-{len(labels)}", run, micro_batch=2048)
    told = {"seconds": round(time.perf_counter() - clock, 1), "accuracy": accuracy(network, test, answers)}
    out.mkdir(parents=True, exist_ok=True)
    save_file(made.state, out / "body.safetensors", {"format": "pt"})
    (out / "record.json").write_text(json.dumps(made.record.as_dict(), indent=1) + "\n")
    (out / "body.json").write_text(json.dumps({**told, "software": software(where)}, indent=1) + "\n")
    for number, part in enumerate(_features(network, images).chunk(_FILES)):
        np.save(out / f"features-train-{number}.npy", part.half().cpu().numpy())
    np.save(out / "features-test.npy", _features(network, test).half().cpu().numpy())


def _features(network: nn.Module, images: Tensor) -> Tensor:
    """What the last layer takes."""
    assert isinstance(network, nn.Sequential)
    with torch.no_grad():
        return torch.cat([network[:-1](part) for part in images.split(1000)])


def main() -> None:
    """The command of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    try:
        make(asked.data, asked.device, asked.out)
    except DpmergeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
