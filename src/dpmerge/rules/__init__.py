"""Profiles and weights in, the guarantee of a merge out: selection, combination, joint release. One theorem per file."""

from dpmerge.rules.combination import Combination
from dpmerge.rules.guarantee import Guarantee, Rule, Target
from dpmerge.rules.joint import Joint
from dpmerge.rules.selection import Selection
from dpmerge.rules.theorems import THEOREMS, Theorem

__all__ = ["THEOREMS", "Combination", "Guarantee", "Joint", "Rule", "Selection", "Target", "Theorem"]
