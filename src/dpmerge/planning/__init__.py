"""From a target (ε, δ) to what may be released: the exact optimum, the feasible set, the plan, who chose the weights."""

from dpmerge.planning.advice import Advice as Advice
from dpmerge.planning.averaging import AverageRule as AverageRule, Averaging as Averaging
from dpmerge.planning.draw import secure_draw as secure_draw, tilted_odds as tilted_odds
from dpmerge.planning.feasible import FeasibleSet as FeasibleSet, blend as blend
from dpmerge.planning.frontier import (
    Curve as Curve,
    Frontier as Frontier,
    FrontierPoint as FrontierPoint,
    ModelAlone as ModelAlone,
    check_frontier as check_frontier,
    frontier as frontier,
)
from dpmerge.planning.knob import Knob as Knob
from dpmerge.planning.optimum import (
    pld_optimum as pld_optimum,
    renyi_optimum as renyi_optimum,
    selection_frontier as selection_frontier,
    selection_optimum as selection_optimum,
)
from dpmerge.planning.option import (
    RULES as RULES,
    Option as Option,
    OptionRule as OptionRule,
    Question as Question,
    Total as Total,
    draw_strength as draw_strength,
)
from dpmerge.planning.plan import Plan as Plan
from dpmerge.planning.points import (
    Epsilon as Epsilon,
    Mapper as Mapper,
    Point as Point,
    combination_points as combination_points,
)
from dpmerge.planning.search import NOT_DRAWN as NOT_DRAWN
from dpmerge.planning.simplex import (
    GRID_RULES as GRID_RULES,
    Account as Account,
    Edge as Edge,
    Heatmap as Heatmap,
    Landscape as Landscape,
    Surface as Surface,
    edge as edge,
    heatmap as heatmap,
    heatmap_grid as heatmap_grid,
    simplex_grid as simplex_grid,
)
from dpmerge.planning.utility import Utilities as Utilities, ValidationSet as ValidationSet
from dpmerge.planning.worth import PREDICTED as PREDICTED, Worth as Worth, training_variance as training_variance
