"""The games by name, or from the user's own module; scenarios are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpmerge.audit.game import CanaryGame, FromFunctions, Game
from dpmerge.errors import DpmergeError, EvaluationError
from dpmerge.user_code import load_function

# name → "module:function" in dpmerge.audit.scenarios; the function takes nothing, gives a game, and its docstring's first
# line tells what is attacked.
SCENARIOS = {
    "gaussian-mean": "gaussian:gaussian_mean",
    "gaussian-one-run": "gaussian:gaussian_one_run",
    "formula-convex": "formula_convex:formula_convex",
    "formula-nonconvex": "formula_nonconvex:formula_nonconvex",
    "chosen-by-accuracy": "chosen:chosen_by_accuracy",
    "chosen-by-tempering": "chosen:chosen_by_tempering",
    "best-of-poisson": "best_of_poisson:best_of_poisson",
    "doubled-shift": "doubled_shift:doubled_shift",
    "one-dimensional-selection": "one_dimension:one_dimensional_selection",
    "same-noise": "same_randomness:same_noise",
    "same-batches": "same_randomness:same_batches",
    "checkpoints": "checkpoints:checkpoints",
    "loose-weights": "loose_weights:loose_weights",
    "selection": "selection:selection",
    "repeated-draws": "repeated_draws:repeated_draws",
    "transport-logistic": "logistic:transport_logistic",
    "digits-softmax": "digits:digits_softmax",
    "digits-canaries": "digits:digits_canaries",
    "shuffled": "shuffled:shuffled",
    "own-count": "own_count:own_count",
}


def find_game(name: str) -> Game | CanaryGame:
    """A scenario by its name, or what `module:function` gives; modules are also looked for in the working folder.

    The function gives a game, or three functions: train, merge and score, as `FromFunctions` takes them.
    """
    try:
        made = _function(name)()
    except DpmergeError:
        raise
    except Exception as fault:
        raise EvaluationError(f"the game {name!r} cannot be made: {type(fault).__name__}: {fault}") from fault
    if isinstance(made, Game | CanaryGame):
        return made
    if isinstance(made, tuple) and len(made) == 3 and all(map(callable, made)):
        return FromFunctions(*made, name=name)
    raise EvaluationError(
        f"{name!r} gave {type(made).__name__}; it must give a Game, a CanaryGame, or three functions: train, merge, score"
    )


def about(name: str) -> str:
    """The first line of a scenario's docstring."""
    return (_function(name).__doc__ or "").strip().partition("\n")[0].removesuffix(".")


def _function(name: str) -> Callable[[], Any]:
    if ":" in name:
        return load_function(name, "the game", EvaluationError)
    if name not in SCENARIOS:
        raise EvaluationError(f"no scenario named {name!r}; give module:function, or one of {', '.join(SCENARIOS)}")
    return load_function(f"dpmerge.audit.scenarios.{SCENARIOS[name]}", "the scenario", EvaluationError)
