"""Experiments after the papers' tables, figures and theorems, and our own: `catalogue` names them all."""

COMMANDS = {"reproduce": "dpmerge_lab.reproduce:reproduce"}
