"""`python -m dpmerge.training.digits FOLDER`: three private models of scikit-learn's digits, from little to much noise."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from dpmerge.tasks import digits
from dpmerge.training.linear import Recipe, bounded_features, train

DATASET = "sklearn-digits-train-1437"
NORM_BOUND = math.sqrt(2)  # images of norm 1, and the bias
RECIPES = {
    name: Recipe(steps=150, learning_rate=1.2, clip=2.001, noise_multiplier=sigma, rate=0.1)
    for name, sigma in (("noise-1", 1.0), ("noise-2", 2.0), ("noise-6", 6.0))
}


def main(folder: Path) -> None:
    """Train, save and say how good they are on the public test part."""
    examples, _ = digits.load()
    features = bounded_features(examples.images, NORM_BOUND)
    for name, recipe in RECIPES.items():
        (model,) = train(features, examples.labels, digits.CLASSES, recipe, norm_bound=NORM_BOUND, dataset=DATASET)
        model.save(folder / name)
        print(f"{folder / name}: test accuracy {digits.accuracy(folder / name):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
