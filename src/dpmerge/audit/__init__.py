"""Privacy audits: attacks that measure a lower bound on the ε of a release, with stated confidence (docs/soundness.md)."""

from dpmerge.audit.game import (
    BoolArray as BoolArray,
    CanaryGame as CanaryGame,
    Claim as Claim,
    ClaimStanding as ClaimStanding,
    FromFunctions as FromFunctions,
    Game as Game,
    about as about,
    find_game as find_game,
    scenario_names as scenario_names,
)
from dpmerge.audit.one_run import Guessing as Guessing
from dpmerge.audit.report import as_dict as as_dict, picture as picture
from dpmerge.audit.run import Audit as Audit, audit as audit, check as check
from dpmerge.audit.verdict import Finding as Finding
