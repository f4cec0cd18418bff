"""What would pay beyond the options of a plan: averages of one run's checkpoints, more noise in the training, a draw by scores.

Numbers are guarantees of what would be released or trained, by the accounting of the plan: rounded up, then rechecked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from dpmerge.errors import AccountingError
from dpmerge.planning.noising import why_not_hidden
from dpmerge.planning.option import Option, Question
from dpmerge.records import LARGEST, DpFtrl, DpSgd, Model, Portfolio, Record
from dpmerge.rules import Guarantee, build, round_up, significant

Kind = Literal["checkpoints", "keep-checkpoints", "retrain", "same-start", "tempered"]
_COARSE = 1e-3  # of the grids of a search; bounds on them are valid
_CLOSE = 1.003  # by how much a noise multiplier may exceed the least
_MOST = 2.0**12  # times the noise that a recipe has
_RUNS = 3  # of which checkpoints are spoken


@dataclass(frozen=True)
class Advice:
    """One thing to do: which kind, in a sentence, about which models, and with which noise multiplier to train again."""

    kind: Kind
    text: str
    models: tuple[str, ...] = ()
    noise_multiplier: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def advise(question: Question, epsilon: float, options: tuple[Option, ...]) -> tuple[Advice, ...]:
    """For a target, and what a plan offers there. Where noise at release pays, that is the better advice."""
    hopeless = why_not_hidden(question.portfolio, question.accounting)
    networks = [model for model in question.portfolio.models if model.name in hopeless and model.covers_iterates]
    fits = {one.weights.used[0][0].name for one in options if one.rule == "single" and one.feasible}
    found = [*_same_start(networks, options), *_averages(question, epsilon, networks), *_tempered(question)]
    again = None if question.looked else _retrained(question, epsilon, [one for one in networks if one.name not in fits])
    return (*found, *(() if again is None else (again,)))


def _same_start(networks: list[Model], options: tuple[Option, ...]) -> Iterator[Advice]:
    """Any average has less noise, which is all that predicted utilities know; it may still be no model (docs/results.md)."""
    for option in options:
        averaged = [model for model, _ in option.weights.used if model in networks]
        starts = {model.start.name if model.start is not None else model.run for model in averaged}
        if option.rule in ("combination", "joint") and option.feasible and len(starts) > 1:
            names = tuple(model.name for model in averaged)
            yield Advice(
                "same-start",
                f"average {', '.join(map(repr, names))} only if their trainings began at the same parameters, which records do "
                "not say: networks averaged from different ones were up to 8 points of accuracy below a draw of them",
                names,
            )
            return


def _averages(question: Question, epsilon: float, networks: list[Model]) -> Iterator[Advice]:
    """Whatever is made of a run's checkpoints is post-processing of the run up to the latest of them (docs/theory.md §7)."""
    runs: dict[str, dict[int, Model]] = {}
    for model in networks:
        runs.setdefault(model.run, {})[getattr(model.mechanism, "steps", 0)] = model
    several = [[held[step] for step in sorted(held)] for held in runs.values() if len(held) > 1]
    for models in several[:_RUNS]:
        names = tuple(model.name for model in models)
        known = [(model, alone) for model in models if (alone := _every_step(question, model)) is not None]
        if not known:
            continue
        within = [one for one in known[1:] if one[1].epsilon <= epsilon]
        last, cost = (within or known)[-1]
        verdict = "which fits" if within else f"which is above {epsilon:g}"
        yield Advice(
            "checkpoints",
            f"{', '.join(map(repr, names))} are checkpoints of one run: any average of those up to {last.name!r} costs what "
            f"the run costs up to there, ε = {round_up(cost.epsilon)} at δ = {cost.delta:g}, {verdict}",
            names,
        )
    if networks and not several:
        yield Advice(
            "keep-checkpoints",
            "a run that keeps its last checkpoints can release their average, which costs what its last model costs alone and "
            "may be the better model",
        )


def _tempered(question: Question) -> Iterator[Advice]:
    if question.looked and question.kappa is None:
        paid = ", or of the ε that its records may pay (`validation_epsilon`)" if question.private_scores else ""
        yield Advice(
            "tempered",
            "utilities that come from looking at the private models are covered by tempered selection, a draw that prefers "
            f"models with better scores in [0, 1]: plan with a strength of it (`kappa`){paid}",
        )


def _every_step(question: Question, model: Model, coarse: bool = False) -> Guarantee | None:
    """Of a model alone, with every step of its run counted."""
    how = question.accounting.for_rule("joint")
    how = replace(how, accuracy=max(_COARSE, how.accuracy)) if coarse else how
    try:
        rule = build("joint", Portfolio((model,)).weights({model.name: 1.0}), how, provenance="a-priori")
        return how.guarantee(rule, delta=question.delta)
    except AccountingError:
        return None


def _retrained(question: Question, epsilon: float, models: list[Model]) -> Advice | None:
    """The least noise multiplier with which the recipe of the most useful model would meet the target."""
    worth = dict(zip(question.portfolio.names, question.shown.values, strict=True))
    usable = [(worth[model.name], model) for model in models if _one_noise(model)]
    if not usable or epsilon <= 0:
        return None
    _, model = max(usable, key=lambda one: one[0])
    own = _one_noise(model)
    question.progress(f"the noise with which to train {model.name} again")
    low, high, most = own, 2 * own, min(_MOST * own, LARGEST)
    while high <= most and not _meets(question, model, high, epsilon):
        low, high = high, 2 * high
    if high > most:
        return None
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _meets(question, model, middle, epsilon) else (middle, high)
    noise = float(significant(high, 4))
    found = _every_step(question, _with_noise(model, noise))
    if found is None or found.epsilon > epsilon:
        return None
    return Advice(
        "retrain",
        f"trained again by the recipe of {model.name!r}, at the same sampling and number of steps, with noise multiplier "
        f"{noise:g} instead of {own:g}, a model alone would have ε = {round_up(found.epsilon)} at δ = {found.delta:g}",
        (model.name,),
        noise,
    )


def _meets(question: Question, model: Model, noise: float, epsilon: float) -> bool:
    found = _every_step(question, _with_noise(model, noise), coarse=True)
    return found is not None and found.epsilon <= epsilon


def _one_noise(model: Model) -> float:
    """The noise multiplier of all steps; 0 where there are several, none, or steps of another run before.

    With adaptive clipping the record's is not the one that Opacus is given.
    """
    mechanism = model.mechanism
    if isinstance(mechanism, DpFtrl):
        return mechanism.noise_multiplier
    if not isinstance(mechanism, DpSgd) or mechanism.clipping == "adaptive" or model.start is not None:
        return 0.0
    found = {phase.noise_multiplier for phase in mechanism.settings()}
    return found.pop() if len(found) == 1 else 0.0


def _with_noise(model: Model, noise: float) -> Model:
    """The same recipe with another noise multiplier in all steps."""
    mechanism: Mapping[str, Any] = {**model.record.as_dict()["mechanism"], "noise_multiplier": noise}
    if "phases" in mechanism:
        phases = [{**phase, "noise_multiplier": None} for phase in mechanism["phases"]]
        mechanism = {**mechanism, "phases": phases}
    return Model(model.name, Record.model_validate({**model.record.as_dict(), "mechanism": mechanism}))
