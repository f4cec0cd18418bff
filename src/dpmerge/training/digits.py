"""`python -m dpmerge.training.digits FOLDER`: three private models of scikit-learn's digits, from little to much noise."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from dpmerge.tasks import digits
from dpmerge.training.softmax import Recipe, save, train

DATASET = "sklearn-digits-train-1437"
RECIPES = {
    "noise-1": Recipe(steps=150, rate=0.1, learning_rate=1.2, clip=2.0, noise_multiplier=1.0),
    "noise-2": Recipe(steps=150, rate=0.1, learning_rate=1.2, clip=2.0, noise_multiplier=2.0),
    "noise-6": Recipe(steps=150, rate=0.1, learning_rate=1.2, clip=2.0, noise_multiplier=6.0),
}


def main(folder: Path) -> None:
    """Train, save and say how good they are on the public test part."""
    examples, _ = digits.load()
    for name, recipe in RECIPES.items():
        run = f"{name}-{secrets.token_hex(4)}"
        tensors, record = train(examples.images, examples.labels, digits.CLASSES, recipe, DATASET, run)
        save(folder / name, tensors, record)
        print(f"{folder / name}: test accuracy {digits.accuracy(folder / name):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
