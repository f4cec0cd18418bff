"""Trainers that the papers' experiments need: DP-FTRL, its network and its noise."""
