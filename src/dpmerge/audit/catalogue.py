"""Games by name (entry points `dpmerge.scenarios`), or from the user's own module; imported when they are asked for."""

from __future__ import annotations

from dpmerge.audit.game import CanaryGame, FromFunctions, Game
from dpmerge.errors import DpmergeError, EvaluationError
from dpmerge.user_code import added, find


def find_game(name: str) -> Game | CanaryGame:
    """A scenario by its name, or what `module:function` gives; modules are also looked for in the working folder.

    The function gives a game, or three functions: train, merge and score, as `FromFunctions` takes them.
    """
    try:
        made = find(name, "scenarios", "the scenario", EvaluationError)()
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


def scenario_names() -> list[str]:
    """Every game that an installed package adds."""
    return list(added("scenarios"))


def about(name: str) -> str:
    """The first line of a scenario's docstring."""
    return (find(name, "scenarios", "the scenario", EvaluationError).__doc__ or "").strip().partition("\n")[0].removesuffix(".")
