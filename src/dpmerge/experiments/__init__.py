"""The papers' experiments, run again: what trains the models, merges them where they were trained, and keeps the numbers."""
