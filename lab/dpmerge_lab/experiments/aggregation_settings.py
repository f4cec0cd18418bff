"""What the experiments on aggregates train: Recycling Scraps' settings, as long as a GPU was at hand. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Setting:
    """One private run, and the aggregates that training goes on from in two more (Table 10 of Recycling Scraps).

    `noise_multiplier` is the least, in thousandths, whose ε by loss distributions at δ = 1e-5 does not exceed `epsilon`.
    """

    epsilon: float
    shifting: bool
    steps: int
    learning_rate: float
    noise_multiplier: float
    start: int
    ema: float  # the weight of the new iterate
    uta: int
    clip: float = 1.0


SETTINGS = {
    "eps1": Setting(1, False, 350, 2.0, 5.842, 245, 0.5, 2),
    "eps8": Setting(8, False, 800, 4.0, 1.584, 560, 0.6, 2),
    "shifting-eps1": Setting(1, True, 350, 2.0, 6.934, 245, 0.6, 3),
    "shifting-eps8": Setting(8, True, 800, 4.0, 1.832, 560, 0.6, 5),
}


@dataclass(frozen=True)
class Size:
    """How large it is: the paper's network and batch, or quick on the digits. Every image is used as it is: augmentation 1."""

    data: str = "cifar10"
    network: str = "wrn-16-4"
    batch: int = 4096
    period: int = 50
    micro_batch: int = 2048
    look_every: int = 25
    quick_steps: int | None = None

    def scaled(self, setting: Setting) -> Setting:
        """As it is, or with so many steps."""
        if self.quick_steps is None:
            return setting
        return replace(setting, steps=self.quick_steps, start=self.quick_steps // 2, learning_rate=0.5)


QUICK = Size("digits", "small-cnn", 200, 4, 512, 4, 12)
