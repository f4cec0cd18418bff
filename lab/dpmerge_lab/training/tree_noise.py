"""Noise for prefix sums by tree aggregation: every node of a binary tree over the steps has its own, a sum adds few of them.

The nodes are the dyadic blocks of steps: [k·2^h, (k+1)·2^h) at height h. A prefix sum is released as the sum of the noisy sums
of the blocks that its length, written in binary, is made of. One step is in at most ⌈log₂(n+1)⌉ blocks within n steps, and this
is all that is paid for (docs/theory.md, `tree-aggregation`). Held are the nodes of the current prefix alone: O(log n) of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TreeNoise:
    """The noise of the prefix sums of one stream, step by step; `draw` gives a node's: fresh each time, an array or a tensor.

    Plain, the noise of a prefix of n steps is the sum of as many nodes' as n has ones in binary.

    With `variance_reduced` the noisy sum of a block is replaced by its best linear estimate from the noisy sums of all blocks
    within it (Honaker 2015, *Efficient use of differentially private binary trees*, from below; Kairouz et al. 2021): at height
    h its own with weight w_h = 1/(2 − 2^−h), the sum of its halves' estimates with weight 1 − w_h. Its variance is w_h instead
    of 1, at the same price. Proof: every block within is a node of the same tree, within the n steps; the theorem releases the
    noisy sums of all nodes; and weights that add up to 1 keep the block's true sum, so the estimate is that sum plus the same
    combination of noises: a function of what is released already.
    """

    def __init__(self, draw: Callable[[], Any], variance_reduced: bool = True) -> None:
        self._draw, self._variance_reduced = draw, variance_reduced
        self._nodes: list[tuple[int, Any]] = []  # height and noise, from the first steps to the last: ever lower
        self._last: Any = 0

    def prefix(self) -> Any:
        """The noise of the sum over one step more."""
        height, noise = 0, self._draw() if self._variance_reduced else None
        while self._nodes and self._nodes[-1][0] == height:
            _, left = self._nodes.pop()
            height += 1
            if self._variance_reduced:
                own = 1 / (2 - 2.0**-height)
                noise = own * self._draw() + (1 - own) * (left + noise)
        self._nodes.append((height, noise if self._variance_reduced else self._draw()))
        return sum(noise for _, noise in self._nodes)

    def increment(self) -> Any:
        """By how much the noise of the prefix sum changes with one step more: what is added to that step's own sum."""
        before, self._last = self._last, self.prefix()
        return self._last - before

    def restart(self) -> None:
        """Begin a new tree: what is in the sums so far stays there, noise and all, and the next sums count from here."""
        self._nodes.clear()
        self._last = 0
