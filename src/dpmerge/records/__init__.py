"""What was run: mechanism records of models and runs, and the portfolio. No numerics."""

from dpmerge.records.portfolio import Model, Portfolio, Weights, latest_checkpoints, require_independent
from dpmerge.records.record import (
    Adjacency,
    ApproxDp,
    DpFtrl,
    DpSgd,
    Gaussian,
    Mechanism,
    NonPrivate,
    Phase,
    Rdp,
    Record,
    Sampling,
)

__all__ = [
    "Adjacency",
    "ApproxDp",
    "DpFtrl",
    "DpSgd",
    "Gaussian",
    "Mechanism",
    "Model",
    "NonPrivate",
    "Phase",
    "Portfolio",
    "Rdp",
    "Record",
    "Sampling",
    "Weights",
    "latest_checkpoints",
    "require_independent",
]
