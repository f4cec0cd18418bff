"""From a target (ε, δ) to weights: the exact optimum, what is feasible, and who chose."""

from dpmerge.planning.averaging import AverageRule as AverageRule, Averaging as Averaging
from dpmerge.planning.draw import secure_draw as secure_draw, tilted_odds as tilted_odds
from dpmerge.planning.edge import edge as edge
from dpmerge.planning.feasible import FeasibleSet as FeasibleSet, blend as blend
from dpmerge.planning.frontier import check_frontier as check_frontier, frontier as frontier
from dpmerge.planning.heatmap import heatmap as heatmap, heatmap_grid as heatmap_grid
from dpmerge.planning.optimum import (
    Optimum as Optimum,
    pld_optimum as pld_optimum,
    renyi_optimum as renyi_optimum,
    selection_frontier as selection_frontier,
    selection_optimum as selection_optimum,
)
from dpmerge.planning.plan import (
    NOT_DRAWN as NOT_DRAWN,
    RULES as RULES,
    Option as Option,
    Plan as Plan,
    RuleName as RuleName,
    above as above,
    draw_strength as draw_strength,
    leaves as leaves,
    plan as plan,
)
from dpmerge.planning.points import (
    Accounting as Accounting,
    Mapper as Mapper,
    Point as Point,
    combination_points as combination_points,
)
from dpmerge.planning.simplex import simplex_grid as simplex_grid
from dpmerge.planning.utility import Provenance as Provenance, Utilities as Utilities
