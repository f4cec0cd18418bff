"""Profiles and weights in, the guarantee of a merge out: selection, combination, joint release. One theorem per file."""

from dpmerge.rules.asked import AskedName, Looked, asked
from dpmerge.rules.combination import Combination
from dpmerge.rules.deltas import about_delta, require_wanted
from dpmerge.rules.guarantee import By, Guarantee, Rule, Target, round_down, round_up, significant
from dpmerge.rules.joint import Joint
from dpmerge.rules.selection import Selection
from dpmerge.rules.theorems import THEOREMS, WEIGHTS, Theorem

__all__ = [
    "THEOREMS",
    "WEIGHTS",
    "AskedName",
    "By",
    "Combination",
    "Guarantee",
    "Joint",
    "Looked",
    "Rule",
    "Selection",
    "Target",
    "Theorem",
    "about_delta",
    "asked",
    "require_wanted",
    "round_down",
    "round_up",
    "significant",
]
