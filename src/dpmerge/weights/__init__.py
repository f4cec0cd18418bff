"""From a target (ε, δ) to weights: the exact optimum, what is feasible, and who chose."""

from dpmerge.weights.edge import edge
from dpmerge.weights.feasible import FeasibleSet
from dpmerge.weights.frontier import frontier
from dpmerge.weights.heatmap import heatmap
from dpmerge.weights.optimum import Optimum, selection_optimum
from dpmerge.weights.plan import Option, Plan, RuleName, above, leaves, plan
from dpmerge.weights.points import Accounting, Mapper
from dpmerge.weights.simplex import simplex_grid
from dpmerge.weights.utility import Provenance, Utilities

__all__ = [
    "Accounting",
    "FeasibleSet",
    "Mapper",
    "Optimum",
    "Option",
    "Plan",
    "Provenance",
    "RuleName",
    "Utilities",
    "above",
    "edge",
    "frontier",
    "heatmap",
    "leaves",
    "plan",
    "selection_optimum",
    "simplex_grid",
]
