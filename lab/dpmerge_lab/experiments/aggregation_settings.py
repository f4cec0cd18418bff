"""What the experiments on aggregates train: Recycling Scraps' settings, as long as a GPU was at hand. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from dpmerge.errors import TrainingError


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
    ema: float  # the weight of the new iterate
    ema_start: int
    uta: int
    uta_start: int
    copies: int  # views of every image in a step
    standardised: bool  # weights of convolutions
    clip: float = 1.0


# At ε = 1 the steps, learning rate, aggregates and their starts are those of the paper's UTA_tr (its EMA_tr without shift goes
# from step 400 to 875 with more noise); at ε = 8 they are shorter, on images and weights as they are.
SETTINGS = {
    "eps1": Setting(1, False, 568, 2.0, 7.382, 0.5, 400, 2, 400, 4, True),
    "eps8": Setting(8, False, 800, 4.0, 1.584, 0.6, 560, 2, 560, 1, False),
    "shifting-eps1": Setting(1, True, 460, 2.0, 7.992, 0.6, 200, 3, 400, 4, True),
    "shifting-eps8": Setting(8, True, 800, 4.0, 1.832, 0.6, 560, 5, 560, 1, False),
}

# At ε = 8 with the steps and the learning rate of the paper's UTA_tr, and its starts of both. They take long: a GPU does some
# 71,000 views a second, and they are shown only where they are kept.
AT_LENGTH = {
    "eps8-long": Setting(8, False, 3068, 4.0, 2.831, 0.6, 2000, 2, 2000, 4, True),
    "shifting-eps8-long": Setting(8, True, 2480, 2.0, 3.024, 0.6, 1500, 5, 2000, 4, True),
}


# The same with a small network, images as they are and batches of 1024, for a CPU. Of several learning rates it has the one at
# which plain runs have the best inference aggregation on the validation half.
_CHOSEN = {"eps1": (2.0, 2.017), "eps8": (4.0, 0.712), "shifting-eps1": (2.0, 2.183), "shifting-eps8": (4.0, 0.768)}
IN_SMALL = {
    name: replace(SETTINGS[name], learning_rate=rate, noise_multiplier=noise, copies=1, standardised=False)
    for name, (rate, noise) in _CHOSEN.items()
}
LONG_IN_SMALL = {
    name: replace(AT_LENGTH[name], noise_multiplier=noise, copies=1, standardised=False)
    for name, noise in {"eps8-long": 0.956, "shifting-eps8-long": 1.002}.items()
}
EVERY_RATE = {
    f"{name}-lr{rate:g}": replace(setting, learning_rate=rate)
    for name, setting in IN_SMALL.items()
    for rate in (0.5, 1, 2, 4, 8, 16)
}
EVERY_TAIL = {f"{name}-tails": IN_SMALL[name] for name in ("eps1", "shifting-eps1")}  # on every k and τ of `Size.tails`
# With the k and τ that Alg. 3 chose from those, with an inference aggregation on top (without shift it chose the paper's own);
# and with a learning rate that is too large for plain runs.
OTHERWISE = {
    "shifting-eps1-tuned": replace(IN_SMALL["shifting-eps1"], uta=2, uta_start=200),
    "eps8-fast": replace(IN_SMALL["eps8"], learning_rate=8.0),
}


def tail(count: int, start: int) -> str:
    """How training on the mean of so many iterates, from that step on, is called where several are tried."""
    return f"UTA tr, k = {count}, τ = {start}"


@dataclass(frozen=True)
class Size:
    """How large it is: the paper's network and batch, smaller for a CPU, or quick on the digits."""

    data: str = "cifar10"
    network: str = "wrn-16-4"
    batch: int = 4096
    period: int = 50
    micro_batch: int = 528  # a few more than an eighth of a batch: most batches are eight parts that are nearly full
    look_every: int = 40
    quick_steps: int | None = None
    tails: tuple[tuple[int, int], ...] = ()  # k and τ of UTA_tr that are tried

    def setting(self, name: str) -> Setting:
        """Of this name, at this size."""
        in_small = IN_SMALL | LONG_IN_SMALL | EVERY_RATE | EVERY_TAIL | OTHERWISE
        known = in_small if self.network == "cnn" else SETTINGS | AT_LENGTH
        if name not in known:
            raise TrainingError(f"no run of this size is called {name!r}; there are {', '.join(known)}")
        setting = known[name]
        if self.quick_steps is None:
            return setting
        steps, half = self.quick_steps, self.quick_steps // 2
        fewer = min(setting.copies, 2)
        return replace(setting, steps=steps, ema_start=half, uta_start=half, learning_rate=0.5, copies=fewer)


_TAILS = tuple(product((2, 3, 5, 10, 20, 50), (100, 200, 400)))
SMALL = Size(network="cnn", batch=1024, micro_batch=128, tails=_TAILS)  # parts that stay in a processor's cache
QUICK = Size("digits", "small-cnn", 100, 4, 512, 4, 8, ((2, 4), (3, 2)))
