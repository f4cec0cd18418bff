"""Profiles and weights in, the guarantee of a merge out: selection, combination, joint release. One theorem per file."""

from dpmerge.rules.combination import Combination
from dpmerge.rules.guarantee import By, Guarantee, Rule, Target, round_down, round_up, significant
from dpmerge.rules.joint import Joint
from dpmerge.rules.selection import Selection
from dpmerge.rules.theorems import THEOREMS, Theorem

__all__ = [
    "THEOREMS",
    "By",
    "Combination",
    "Guarantee",
    "Joint",
    "Rule",
    "Selection",
    "Target",
    "Theorem",
    "round_down",
    "round_up",
    "significant",
]
