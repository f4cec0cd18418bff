"""Checkpoints of one private run, already paid for: averages, predictions, and how uncertain they are (docs/theory.md §7)."""
