"""The pictures of the mean estimation experiment: Fig. 1, 7, 8 and Lemma 4.1 of Differentially Private Model Merging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpmerge_lab.experiments.results import around

_RDP = "RDP, papers' conversion"
# Each line of the pictures: the rule, the accountant, and what it is called.
_LINES = (
    ("selection", "rdp", f"random selection, {_RDP}"),
    ("selection", "pld", "random selection, PLD"),
    ("selection", "exact", "random selection, law of what is released"),
    ("combination", "rdp", f"linear combination, {_RDP}"),
    ("combination", "pld", "linear combination, PLD"),
)
_HIDDEN = "The law of what is released accounts for a draw of which nobody learns which model it is."


def pictures(configuration: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Everything to draw, by name."""
    precise, noisy = configuration["noise_std"]
    setting = f"mean of {configuration['samples']} values in [−1, 1], noises {precise:g} and {noisy:g}"
    common = {"kind": "lines", "subtitle": f"{setting}, replace-one neighbours"}
    axis = f"ε at δ = {configuration['delta']:g}".replace("e-0", "e-")
    return {
        "tradeoff": {**common, **_tradeoff(axis, numbers)},
        "selection": {
            **common,
            "title": "Private means: random selection (Differentially Private Model Merging, Fig. 7)",
            "caption": _HIDDEN,
            "panels": _over_weights("selection", f"π, probability of the release with noise {precise:g}", axis, numbers),
        },
        "combination": {
            **common,
            "title": "Private means: linear combination (Differentially Private Model Merging, Fig. 8)",
            "panels": _over_weights("combination", f"λ, weight of the release with noise {precise:g}", axis, numbers),
        },
        "renyi": {**common, **_renyi(numbers["renyi"])},
    }


def _tradeoff(axis: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    lines = []
    for rule, by, label in _LINES:
        x, y = _frontier(numbers[rule][by], numbers[rule]["error"])
        lines.append({"rule": rule, "by": by, "label": label, "x": x, "y": y})
    together = numbers["joint release"]
    points = [{"name": name, "x": one["pld"], "y": one["error"]} for name, one in numbers["alone"].items()]
    return {
        "title": "Private means: error against privacy (Differentially Private Model Merging, Fig. 1)",
        "caption": f"Frontiers over all weights; the marks are accounted by loss distributions. {_HIDDEN}",
        "x_label": axis,
        "y_label": "mean squared error",
        "x_scale": "log",
        "lines": lines,
        "points": [*points, {"name": "both", "x": together["pld"], "y": together["error"], "mark": "joint"}],
    }


def _frontier(epsilons: list[float], errors: list[float]) -> tuple[list[float], list[float]]:
    """The points that no other beats in both, by ε."""
    kept: list[tuple[float, float]] = []
    for epsilon, error in sorted(zip(epsilons, errors, strict=True)):
        if not kept or error < kept[-1][1]:
            kept.append((epsilon, error))
    return [epsilon for epsilon, _ in kept], [error for _, error in kept]


def _over_weights(rule: str, label: str, axis: str, numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """ε and error against the weight; of the measured errors, those at evenly spaced weights."""
    held = numbers[rule]
    weights, measured = held["weight"], held["measured error"]
    shown = [min(range(len(weights)), key=lambda index: abs(weights[index] - tenth / 10)) for tenth in range(11)]
    heights = around([measured["mean"][k] for k in shown], [measured["std"][k] / measured["runs"] ** 0.5 for k in shown])
    name = f"error measured, mean ± standard error over {measured['runs']} seeds"
    lines = [
        {"label": "error in closed form", "standing": "reference", "x": weights, "y": held["error"]},
        {"label": name, "standing": "measured", "x": [weights[index] for index in shown], "markers": True, **heights},
    ]
    epsilons = [{"rule": rule, "by": by, "label": text, "x": weights, "y": held[by]} for of, by, text in _LINES if of == rule]
    return [
        {"title": "privacy", "x_label": label, "y_label": axis, "y_scale": "log", "lines": epsilons},
        {"title": "error", "x_label": label, "y_label": "mean squared error", "lines": lines},
    ]


def _renyi(renyi: Mapping[str, Any]) -> dict[str, Any]:
    """At one weight: of the draw, by the bound and by the law of what is released, and of the average of the same error."""
    described = (
        ("selection", "rdp", "random selection, bound of Thm 5.1", "selection, bound", "proved"),
        ("selection", "exact", "random selection, law of what is released", "selection", "measured"),
        ("combination", "rdp", "linear combination of the same error", "combination", "proved"),
    )
    return {
        "title": f"Rényi divergences at equal error, π = {renyi['weight']:g} (Differentially Private Model Merging, Lemma 4.1)",
        "caption": _HIDDEN,
        "x_label": "order α",
        "y_label": "Rényi divergence",
        "x_scale": "log",
        "y_scale": "log",
        "lines": [
            {"rule": rule, "by": by, "label": label, "standing": standing, "x": renyi["order"], "y": renyi[key]}
            for rule, by, label, key, standing in described
        ],
    }
