"""The laboratory beside dpmerge: the papers' experiments, their networks and data sets, and games that attack guarantees.

It uses dpmerge through the front doors of its rooms only. What it adds to the tool is listed in lab/pyproject.toml.
"""
