"""Benchmarks, each against its peer in the same run. `make bench` runs them all."""
