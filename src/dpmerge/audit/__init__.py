"""Attacks on our own guarantees: games that measure a lower bound on ε of a release, with confidence (docs/soundness.md)."""

from dpmerge.audit.catalogue import SCENARIOS, find_game
from dpmerge.audit.game import CanaryGame, Claim, FromFunctions, Game
from dpmerge.audit.run import Audit, audit, check

__all__ = ["SCENARIOS", "Audit", "CanaryGame", "Claim", "FromFunctions", "Game", "audit", "check", "find_game"]
