"""The search for the best weights of every rule at one target (ε, δ)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from dpmerge.errors import AccountingError, TargetError
from dpmerge.planning.draw import tilted_odds
from dpmerge.planning.feasible import FeasibleSet, blend
from dpmerge.planning.noising import Noising, with_least_noise
from dpmerge.planning.optimum import selection_optimum
from dpmerge.planning.option import Option, OptionRule, Question
from dpmerge.records import Weights
from dpmerge.rules import MIXTURE_ACCOUNTANTS, Accounting, Guarantee, Rule

_GOALS = 6  # a search towards every one of many models would take minutes
NOT_DRAWN = (
    "the scores come from a private validation set, and only a draw by them is paid for: tempered selection with a strength κ, "
    "or with the ε that the set's records may pay"
)


@dataclass(frozen=True)
class Search:
    """The answers to a question at one ε. `Plan` compares the options found with the target."""

    question: Question
    epsilon: float

    def options(self, rule: OptionRule) -> list[Option]:
        if rule != "single":
            self.question.progress(rule)
        found: list[Option] = getattr(self, f"_{rule}")()
        return found

    def _single(self) -> list[Option]:
        asked = self.question
        return [
            asked.option("single", asked.vertex(name), found)
            if isinstance(found, Guarantee)
            else asked.option("single", asked.vertex(name), None, str(found))
            for name, found in asked.alone.items()
        ]

    def _selection(self) -> list[Option]:
        asked, accounting = self.question, self.question.accounting
        named = tuple(by for by in MIXTURE_ACCOUNTANTS if by == accounting.by)
        options = []
        for one in (replace(accounting, by=by) for by in named or MIXTURE_ACCOUNTANTS):
            try:
                best = selection_optimum(asked.profiles, asked.worth.linear, self.epsilon, asked.delta, one, asked.groups)
                weights = self._named(best.weights) if best else asked.vertex(asked.most_private)
                found = self._saturated(asked.rule("selection", weights), one)
                options.append(asked.option("selection", weights, found))
            except AccountingError as error:
                options.append(asked.option("selection", asked.vertex(asked.portfolio.names[0]), None, str(error)))
        return options

    def _joint(self) -> list[Option]:
        """Joint release of all models. It covers any merge, so it is worth at least the best model."""
        asked, everyone = self.question, self.question.everyone()
        if asked.private_scores:
            return [asked.option("joint", everyone, None, NOT_DRAWN)]
        try:
            found = asked.accounting.guarantee(asked.rule("joint", everyone), delta=asked.delta)
        except AccountingError as error:
            return [asked.option("joint", everyone, None, str(error))]
        return [asked.option("joint", everyone, found)]

    def _tempered(self) -> list[Option]:
        """From the most private model towards the best selection, as far as the tempered bound allows.

        The base probabilities must not depend on the private models (docs/theory.md §4): if the utilities were measured on
        them, what is known beforehand stands in for them there. Private scores may choose among all models if that fits.
        """
        asked = self.question
        kappa, values = asked.kappa, asked.shown.values
        if kappa is None:
            return []
        if not all(0 <= value <= 1 for value in values):
            raise TargetError("tempered selection needs utilities in [0, 1]; rescale them")
        try:
            start = end = asked.vertex(asked.most_private)
            best = selection_optimum(asked.profiles, asked.beforehand.linear, self.epsilon, asked.delta, groups=asked.groups)
            if best is not None:
                end = self._named(best.weights)
            best_of_all = replace(asked.accounting, by="best")
            space = FeasibleSet(partial(asked.rule, "tempered"), self.epsilon, asked.delta, best_of_all)
            if asked.private_scores and space.contains(asked.everyone()):
                end = asked.everyone()
            weights = blend(start, end, space.boundary(start, end)) if space.contains(start) else start
            found = self._saturated(asked.rule("tempered", weights), best_of_all)
        except AccountingError as error:
            return [asked.option("tempered", asked.vertex(asked.portfolio.names[0]), None, str(error))]
        odds = tilted_odds(weights.values, values, kappa)
        expected = sum(odd * Fraction(value) for odd, value in zip(odds, values, strict=True)) / sum(odds)
        return [asked.option("tempered", weights, found, utility=float(expected))]

    def _combination(self) -> list[Option]:
        """The best model and average with noise, the best average without where one fits; every candidate the user names."""
        asked = self.question
        options, noising = [], Noising(asked, self.epsilon)
        if asked.looked:  # no average is covered: none is searched for
            options.append(self._accounted(asked.vertex(asked.most_private)))
        elif asked.with_noise:
            options += noising.options()
        if options and not asked.looked and self._fits_alone(asked.most_private):
            # Close to a model that fits, a little of a better one may be worth more than noise on that.
            with suppress(AccountingError):
                options.append(self._accounted(self._best_average()))
        if not options:
            try:
                options.append(self._accounted(self._best_average()))
            except AccountingError as error:
                most_useful = asked.vertex(max(asked.portfolio.names, key=self._worth))
                options.append(asked.option("combination", most_useful, None, str(error)))
            options = [replace(option, noiseless=noising.refusal() if asked.with_noise else "") for option in options]
        return options + [self._accounted(weights) for weights in asked.candidates]

    def _fits_alone(self, name: str) -> bool:
        found = self.question.alone[name]
        return isinstance(found, Guarantee) and found.epsilon < self.epsilon

    def _accounted(self, weights: Weights) -> Option:
        """This average, with noise where it does not meet the target without."""
        asked = self.question
        try:
            found = self._saturated(asked.rule("combination", weights), asked.accounting)
            noise, found = with_least_noise(asked, weights, found, self.epsilon)
        except AccountingError as error:
            return asked.option("combination", weights, None, str(error))
        return asked.option("combination", weights, found, noise=noise)

    def _best_average(self) -> Weights:
        """The utility of an average is not linear in the weights, so a linear one only guides the search.

        It goes from the most private model as far as the budget allows towards each more useful one (the most useful first),
        and towards the best two together; then weight moves between pairs of models as long as that gains something and fits.
        """
        asked = self.question
        hidden = len(Noising(asked, self.epsilon).why_not) < len(asked.portfolio.names)
        every_step = replace(asked, accounting=replace(asked.accounting, only_release=False))
        space = FeasibleSet(
            partial(asked.rule, "combination"),
            self.epsilon,
            asked.delta,
            asked.accounting,
            quick=partial(every_step.rule, "combination") if hidden else None,
        )
        start = asked.vertex(asked.most_private)
        useful = sorted(asked.portfolio.names, key=self._worth, reverse=True)
        goals = [asked.vertex(name) for name in useful if self._worth(name) > asked.value(start)]
        reached = [start]
        if space.contains(start):
            reached += [self._towards(space, start, goal) for goal in goals[:_GOALS]]
            if len(goals) > 1:
                best, second = sorted(reached[1:], key=asked.value, reverse=True)[:2]
                reached.append(self._towards(space, start, blend(best, second, 0.5)))
        weights = max(reached, key=asked.value)
        return self._exchanged(space, weights, useful) if len(goals) > 1 else weights

    def _towards(self, space: FeasibleSet, start: Weights, goal: Weights) -> Weights:
        self.question.progress(f"combination with {', '.join(model.name for model, _ in goal.used)}")
        return blend(start, goal, space.boundary(start, goal, tolerance=1e-3))

    def _exchanged(self, space: FeasibleSet, weights: Weights, useful: Sequence[str]) -> Weights:
        """Move weight from a model to a more useful one, pair by pair, while at least a tenth of it may go."""
        for taker in useful[:_GOALS]:
            for giver in [model.name for model, _ in weights.used if self._worth(model.name) < self._worth(taker)]:
                held = weights.as_dict()
                goal = self.question.portfolio.weights({**held, taker: held[taker] + held[giver], giver: 0.0})
                if space.contains(blend(weights, goal, 0.1)):
                    weights = self._towards(space, weights, goal)
        return weights

    def _named(self, values: Sequence[float]) -> Weights:
        return self.question.portfolio.weights_in_order(values)

    def _worth(self, name: str) -> float:
        return self.question.shown.values[self.question.portfolio.names.index(name)]

    def _saturated(self, rule: Rule, accounting: Accounting) -> Guarantee:
        """For weights on the edge of the target: their ε at its δ if inside, else their δ at its ε."""
        found = accounting.guarantee(rule, delta=self.question.delta)
        if self.epsilon < found.epsilon <= 1.01 * self.epsilon:
            edge = accounting.guarantee(rule, epsilon=self.epsilon)
            return edge if edge.delta <= self.question.delta else found
        return found
