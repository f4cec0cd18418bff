"""Several views of every image in one private step: augmentation multiplicity (De et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpmerge.errors import TrainingError


@dataclass(frozen=True)
class Augmentation:
    """An example's gradient is the mean over `copies` of its image, each moved at random by up to `border` pixels (what comes
    into view is the image's reflection) and mirrored by a coin. That one gradient is clipped: the guarantee is that of the
    same run on images as they are.
    """

    copies: int
    border: int = 4

    def __post_init__(self) -> None:
        if self.copies < 1 or self.border < 0:
            raise TrainingError(f"an augmentation needs at least one copy, and a border of 0 pixels or more: {self}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Of every image its copies, in a row. The generator is where the images are."""
        count, (high, wide), where = len(images) * self.copies, images.shape[2:], images.device
        moves = torch.randint(2 * self.border + 1, (2, count), generator=generator, device=where)
        mirrored = torch.randint(2, (count,), generator=generator, device=where).bool()
        rows = moves[0, :, None] + torch.arange(high, device=where)
        across = torch.arange(wide, device=where)
        columns = moves[1, :, None] + torch.where(mirrored[:, None], across.flip(0), across)
        padded = functional.pad(images, (self.border,) * 4, mode="reflect")
        owner = torch.arange(count, device=where) // self.copies
        channels = torch.arange(images.shape[1], device=where)
        return padded[
            owner[:, None, None, None], channels[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]

    def __str__(self) -> str:
        return f"every gradient the mean over {self.copies} views of an image, moved by up to {self.border} pixels and mirrored"
