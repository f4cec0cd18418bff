"""Every value of docs/theory.md §8 within 0.2 %, through the public rules."""

from __future__ import annotations

import pytest

from dpmerge.records import Portfolio
from dpmerge.rules import Combination, Guarantee, Joint, Selection
from tests import builders

RATE = 256 / 60000
DELTA = 1e-5


def papers_portfolio(smoothness: float | None = None, convex: str | None = None) -> Portfolio:
    """App. H.1 of Differentially Private Model Merging v1: (C, σ) = (1, 0.5), (2, 0.5), (1, 2.0)."""
    runs = (("a", 1.0, 0.5), ("b", 2.0, 0.5), ("c", 1.0, 2.0))
    return builders.portfolio(
        *(
            builders.dp_sgd(
                name, sigma=s, clip=c, steps=705, eta=0.1, batch=256, sampling=RATE, smoothness=smoothness, convex=convex
            )
            for name, c, s in runs
        )
    )


def close(guarantee: Guarantee, expected: float) -> None:
    assert guarantee.epsilon == pytest.approx(expected, rel=2e-3)


THIRDS = (1 / 3, 1 / 3, 1 / 3)


@pytest.mark.parametrize("name,expected", [("a", 6.458), ("b", 6.458), ("c", 0.2043)])
def test_single_runs(name: str, expected: float) -> None:
    close(Joint(papers_portfolio().weights({name: 1.0})).guarantee(delta=DELTA), expected)


@pytest.mark.parametrize(
    "pi,pld,paper,tight",
    [
        (THIRDS, 6.214, 8.751, 7.669),
        ((0.1, 0.1, 0.8), 5.484, 8.110, 7.028),
        ((0.01, 0.01, 0.98), 4.050, 7.150, 6.103),
        ((0.0, 0.001, 0.999), 2.089, None, None),
    ],
)
def test_random_selection(pi: tuple[float, ...], pld: float, paper: float | None, tight: float | None) -> None:
    rule = Selection(papers_portfolio().weights(dict(zip("abc", pi, strict=True))))
    close(rule.guarantee(delta=DELTA, by="pld"), pld)
    if paper is not None and tight is not None:
        close(rule.guarantee(delta=DELTA, by="rdp", conversion="paper"), paper)
        close(rule.guarantee(delta=DELTA, by="rdp", conversion="tight"), tight)


def test_joint_release() -> None:
    rule = Joint(papers_portfolio().weights(dict(zip("abc", THIRDS, strict=True))))
    close(rule.guarantee(delta=DELTA, by="pld"), 7.927)


def test_papers_formula() -> None:
    rule = Combination(papers_portfolio().weights(dict(zip("abc", THIRDS, strict=True))), assume_smoothness=0)
    found = rule.guarantee(delta=DELTA, by="pld")
    close(found, 0.871)
    assert found.standing == "conditional"
    assert found.theorem == "papers-formula"
    assert any("do not depend on the state" in text for text in found.assumptions)


@pytest.mark.parametrize(
    "x,proved,paper",
    [(0.001, 0.2047, 0.2045), (0.01, 0.2221, 0.2071), (0.05, 0.4984, 0.2193), (0.1, 1.0666, 0.2365), (0.2, 2.890, 0.2784)],
)
def test_coupled_poisson_runs(x: float, proved: float, paper: float) -> None:
    """With smoothness 0.01 every step is non-expansive whatever the batch, so δ₀ = 0."""
    weights = papers_portfolio(0.01, "unclipped").weights({"a": x / 2, "b": x / 2, "c": 1 - x})
    found = Combination(weights, only_release=False).guarantee(delta=DELTA)
    close(found, proved)
    assert found.standing == "proved"
    assert found.theorem == "coupled-coins"
    assert found.details["coupled"] == ["a", "b"]
    assert "batch_bound_failure" not in found.details
    close(Combination(weights, assume_smoothness=0).guarantee(delta=DELTA), paper)


@pytest.mark.parametrize(
    "smoothness,convex,assume,expected",
    [(0.2, "glm", None, 0.26903), (0.2, None, None, 0.40786), (None, None, None, 0.68406), (None, None, 0.0, 0.20793)],
)
def test_full_batch_transport(smoothness: float | None, convex: str | None, assume: float | None, expected: float) -> None:
    from dpmerge.profiles import gaussian_epsilon

    runs = [
        builders.dp_sgd(name, sigma=s, steps=100, eta=0.1, batch=1000, smoothness=smoothness, convex=convex)
        for name, s in (("a", 60.0), ("b", 15.0))
    ]
    weights = builders.portfolio(*runs).weights({"a": 0.8, "b": 0.2})
    found = Combination(weights, assume_smoothness=assume).guarantee(delta=DELTA)
    assert found.by == "gdp"
    assert found.epsilon == pytest.approx(gaussian_epsilon(expected, DELTA), rel=1e-4)
    joint = Joint(weights).guarantee(delta=DELTA)
    assert joint.epsilon == pytest.approx(gaussian_epsilon(0.68718, DELTA), rel=1e-4)


def test_sharing_batches_would_double_epsilon() -> None:
    """docs/theory.md §0: two runs, q = 0.01, σ = 0.8, T = 1000: 4.29 with independent coins, 8.97 with the same."""
    runs = [builders.dp_sgd(n, sigma=0.8, steps=1000, sampling=0.01, batch=100) for n in "ab"]
    close(Joint(builders.portfolio(*runs).weights({"a": 0.5, "b": 0.5})).guarantee(delta=DELTA), 4.29)
    same = builders.dp_sgd("s", sigma=0.8 / 2**0.5, steps=1000, sampling=0.01, batch=100)
    close(Joint(builders.portfolio(same).weights({"s": 1.0})).guarantee(delta=DELTA), 8.97)
