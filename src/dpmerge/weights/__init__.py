"""From a target (ε, δ) to weights: the exact optimum, what is feasible, and who chose."""

from dpmerge.weights.feasible import FeasibleSet
from dpmerge.weights.optimum import Optimum, selection_optimum
from dpmerge.weights.plan import Option, Plan, plan
from dpmerge.weights.utility import Provenance, Utilities

__all__ = ["FeasibleSet", "Optimum", "Option", "Plan", "Provenance", "Utilities", "plan", "selection_optimum"]
