"""Averages, predictions and uncertainty from one private run's checkpoints, at the run's own cost (docs/theory.md §7)."""

from dpmerge.checkpoints.abstention import Abstention as Abstention, abstention_curve as abstention_curve
from dpmerge.checkpoints.average import average as average, averaging as averaging
from dpmerge.checkpoints.predict import (
    OutputRule as OutputRule,
    Predictions as Predictions,
    predictions as predictions,
    predictions_guarantee as predictions_guarantee,
    require_writable as require_writable,
    write_predictions as write_predictions,
)
from dpmerge.checkpoints.predictor import Inputs as Inputs, find_predictor as find_predictor, load_inputs as load_inputs
from dpmerge.checkpoints.run import Run as Run, Several as Several, steps as steps
from dpmerge.checkpoints.spread import PUBLIC as PUBLIC, Spread as Spread
from dpmerge.checkpoints.tuning import (
    Grid as Grid,
    Parameter as Parameter,
    Score as Score,
    Search as Search,
    Tuned as Tuned,
    TunedRule as TunedRule,
)
from dpmerge.checkpoints.uncertainty import (
    CONFIDENCE as CONFIDENCE,
    Uncertainty as Uncertainty,
    chosen_steps as chosen_steps,
    uncertainty as uncertainty,
    variance_estimate as variance_estimate,
)
from dpmerge.checkpoints.uncertainty_files import (
    SUFFIXES as SUFFIXES,
    summary as summary,
    write as write,
)
