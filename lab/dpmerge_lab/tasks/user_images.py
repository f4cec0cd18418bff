"""Images shared out to users who know few classes: a user-keyed data set of MNIST, CIFAR-10 or the digits.

Images of even classes are put in order of class and cut into blocks of equal size, and so are those of odd classes; each user
gets two blocks of either, drawn without replacement by a public seed (McMahan et al. 2017 deal out blocks of sorted digits so).
So a user has as many even images as odd ones, of four classes mostly, and no image belongs to two users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import DataError

_BLOCKS = 2  # of even classes, and of odd ones


@dataclass(frozen=True, eq=False)
class UserImages:
    """`even` and `odd` hold the numbers of each user's images, one row each; a user shows both, or one of them (`only`)."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    even: npt.NDArray[np.int64]
    odd: npt.NDArray[np.int64]
    shown: tuple[str, ...] = ("even", "odd")

    @classmethod
    def share_out(
        cls, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], users: int, each: int, seed: int = 0
    ) -> UserImages:
        """To so many users, `each` images to each, of which half are of even classes; images that are left belong to nobody."""
        size, rest = divmod(each, 2 * _BLOCKS)
        if rest or not size or users < 1:
            raise DataError(f"{each} images for each of {users} users cannot be dealt out in four blocks of equal size")
        generator = np.random.default_rng(seed)
        halves = []
        for parity in (0, 1):
            of_half = np.flatnonzero(labels % 2 == parity)
            ordered = of_half[np.argsort(labels[of_half], kind="stable")]
            blocks = ordered[: len(ordered) // size * size].reshape(-1, size)
            if len(blocks) < users * _BLOCKS:
                raise DataError(
                    f"{users} users need {users * each // 2} images of {'odd' if parity else 'even'} classes; there are "
                    f"{len(of_half)}"
                )
            halves.append(blocks[generator.permutation(len(blocks))[: users * _BLOCKS]].reshape(users, -1))
        return cls(images, labels, halves[0], halves[1])

    def __len__(self) -> int:
        return len(self.even)

    def examples(self, user: int, step: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """What the user shows in any round: images and labels."""
        mine = np.concatenate([getattr(self, half)[user] for half in self.shown])
        return self.images[mine], self.labels[mine]

    def only(self, half: str) -> UserImages:
        """The same users, who show their images of "even" or of "odd" classes alone."""
        if half not in ("even", "odd"):
            raise DataError(f"users have images of even and of odd classes; {half!r} is neither")
        return replace(self, shown=(half,))
