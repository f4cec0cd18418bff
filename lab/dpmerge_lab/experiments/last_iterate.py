"""What the last iterate alone costs: the linear portfolios of the docs, accounted with and without theorem `hidden-run`.

Nothing is trained: a guarantee depends on records alone, and these are made from the recipes. *Before* is the best theorem
that lets every iterate be published; *now* may also assume that nothing but the release is (docs/theory.md §9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dpmerge
from dpmerge.errors import TrainingError
from dpmerge.jobs import run_all
from dpmerge.records import Model, Portfolio
from dpmerge.rules import Accounting
from dpmerge.training import GENERATOR, Loss, PortfolioFile, Recipe, facts_of_linear
from dpmerge_lab.experiments.mnist import LONGEST, full_batch, logistic_twin, poisson_twin
from dpmerge_lab.experiments.portfolios import DELTA, Setting
from dpmerge_lab.experiments.results import Options, Result, timed

_FOLDER = Path(__file__).parent.parent.parent / "portfolios"
_DIGITS, _MNIST = 1437, 60000  # examples
Weights = tuple[float, ...]


def last_iterate(options: Options) -> Result:
    """ε of every model alone, and of some averages, before and now."""
    asked = {name: [*_corners(len(portfolio)), *averages] for name, (portfolio, averages) in _portfolios(options).items()}
    configuration = {"delta": DELTA, "portfolios": {name: len(points) for name, points in asked.items()}}
    with timed(Result("last-iterate", configuration)) as result:
        for name, (portfolio, _) in _portfolios(options).items():
            account = partial(row, portfolio)
            result.numbers[name] = run_all(account, asked[name], jobs=options.jobs, progress=options.bar(name))
        result.pictures = pictures(result.numbers)
    return result


def pictures(numbers: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """The table, a panel for every portfolio; every ε is computed, so there are no bars. Averages by weights, in order."""
    labels = {"before": "every iterate may be published", "now": "nothing but the release is published"}
    panels = []
    for name, rows in numbers.items():
        models = [next(iter(row["weights"])) for row in rows if len(row["weights"]) == 1]
        releases = [_release(row["weights"], models) for row in rows]
        lines = [
            {"label": label, "x": list(range(len(rows))), "y": [row[when]["epsilon"] for row in rows], "joined": False}
            for when, label in labels.items()
        ]
        axes = {"x_label": "release", "y_label": f"ε at δ = {DELTA:g}", "y_scale": "log", "categories": releases}
        panels.append({"title": name, **axes, "lines": lines})
    title = "What a release costs if nothing else of its runs is ever published"
    return {"table": {"kind": "lines", "title": title, "subtitle": "the best theorem that applies", "panels": panels}}


def _release(weights: Mapping[str, float], models: Sequence[str]) -> str:
    """A model's name, or the weights of all models in order."""
    return next(iter(weights)) if len(weights) == 1 else f"({', '.join(f'{weights.get(one, 0):.3g}' for one in models)})"


def row(portfolio: Portfolio, weights: Weights) -> dict[str, Any]:
    """One release: its ε and theorem, before and now."""
    used = {name: weight for name, weight in zip(portfolio.names, weights, strict=True) if weight > 0}
    found: dict[str, Any] = {"weights": used}
    for label, only in (("before", False), ("now", True)):
        guarantee = dpmerge.combination(portfolio, used, accounting=Accounting(only_release=only)).guarantee(delta=DELTA)
        found[label] = {"epsilon": guarantee.epsilon, "theorem": guarantee.theorem}
    return found


def _portfolios(options: Options) -> dict[str, tuple[Portfolio, Sequence[Weights]]]:
    """Every portfolio with the averages of it that the docs speak of."""
    half, tenth = (0.5, 0.5), (0.1, 0.9)
    found: dict[str, tuple[Portfolio, Sequence[Weights]]] = {
        "digits.yaml": (
            portfolio_of(portfolio_file("digits.yaml"), _DIGITS),
            [] if options.quick else [(1 / 3, 1 / 3, 1 / 3), (0.1, 0.2, 0.7)],
        )
    }
    if options.quick:
        return found
    # mnist-c1-s0.5, mnist-c1-s2, mnist-c2-s0.5
    averages = [(0.05, 0.95, 0.0), (0.05, 0.9, 0.05), (0.1, 0.8, 0.1), (1 / 3, 1 / 3, 1 / 3)]
    found["example portfolio"] = (Portfolio(dpmerge.example_portfolio()), averages)
    found["mnist.yaml"] = (portfolio_of(portfolio_file("mnist.yaml"), _MNIST), [(0.1, 0.1, 0.8)])
    found["warm-up and decay"] = (of_setting(full_batch(1.0, decay=True)), [tenth, half])
    found["constant rate"] = (of_setting(full_batch(LONGEST, decay=False)), [tenth, half])
    found["Poisson twin"] = (of_setting(poisson_twin()), [tenth, (0.13, 0.87), half])
    found["logistic twin"] = (of_setting(logistic_twin()), [tenth, half])
    return found


def _corners(count: int) -> list[Weights]:
    return [tuple(float(i == j) for j in range(count)) for i in range(count)]


def of_setting(setting: Setting) -> Portfolio:
    """Records of the runs on all of MNIST that a setting describes."""
    return _portfolio(setting.recipes, _MNIST, setting.norm_bound, setting.loss)


def portfolio_file(name: str) -> PortfolioFile:
    """A file of the laboratory's portfolios."""
    if not (_FOLDER / name).is_file():
        raise TrainingError(f"{name} is not beside the laboratory; run this in a checkout of the repository")
    return PortfolioFile.load(_FOLDER / name)


def portfolio_of(file: PortfolioFile, examples: int) -> Portfolio:
    """The records that `dpmerge train` would write for this file."""
    assert file.about.norm_bound is not None
    recipes = {run: form.recipe(np.zeros(examples, dtype=np.int64)) for run, form in file.runs.items()}
    return _portfolio(recipes, examples, file.about.norm_bound, "softmax")


def _portfolio(recipes: Mapping[str, Recipe], examples: int, norm_bound: float, loss: Loss) -> Portfolio:
    models = []
    for name, recipe in recipes.items():
        smoothness, convex = facts_of_linear(loss, recipe.clip, norm_bound)
        record = recipe.record(
            recipe.steps,
            examples,
            dataset="data",
            run=name,
            noise=f"noise of {name}",
            sampler=f"coins of {name}",
            noise_generator=GENERATOR,
            smoothness=smoothness,
            convex=convex,
        )
        models.append(Model(name, record))
    return Portfolio(models)
