"""The papers' tables and figures, one file each."""

COMMANDS = {"reproduce": "dpmerge_lab.reproduce:reproduce"}
