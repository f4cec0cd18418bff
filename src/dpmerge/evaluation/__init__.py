"""Merge, then measure: what a combination is really worth."""

from dpmerge.evaluation.score import MergedScore, find_evaluator

__all__ = ["MergedScore", "find_evaluator"]
