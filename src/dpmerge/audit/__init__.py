"""Attacks on our own guarantees: games that measure a lower bound on ε of a release, with confidence (docs/soundness.md)."""
