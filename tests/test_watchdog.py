"""The watchdog: every scenario that ships, attacked. A proved guarantee that is exceeded fails the build (docs/soundness.md).

Arithmetic of false alarms. One audit's confidence covers all it says: every limit, claim and δ. The audits share 5e-7 evenly,
so even if all claims were exactly attained, some audit would raise a false alarm with probability at most 5e-7 < 1e-6. For
simulators, whose seeds are fixed, that is over the choice of the seed: their outcome is the same in every build. Real trainings
draw fresh entropy, and there it is per build.
"""

from __future__ import annotations

import pytest

from dpmerge.audit import CanaryGame, Game, about, audit, find_game
from dpmerge_lab.audit import SCENARIOS

FALSE_ALARMS = 5e-7
CONFIDENCE = 1 - FALSE_ALARMS / len(SCENARIOS)
SEED = 20_240_607
TRAININGS = 1_000  # of each world, where they are real
# Steinke et al.'s bound adds 2mδ to the level, times less than 1: at the games' own δ nothing could be shown so surely.
ONE_RUN_DELTA = 1e-12


def settings(game: Game | CanaryGame) -> dict[str, int | float | None]:
    """Half of the usual number of trials of a simulator; `make audit` plays four times that number."""
    return {
        "trials": (game.trials // 2 if game.simulated else TRAININGS) if isinstance(game, Game) else None,
        "delta": None if isinstance(game, Game) else ONE_RUN_DELTA,
        "seed": SEED if game.simulated else None,
    }


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_proved_guarantee_is_exceeded(name: str) -> None:
    game = find_game(name)
    assert game.name == name and game.about and about(name)
    result = audit(game, confidence=CONFIDENCE, jobs=1, **settings(game))  # type: ignore[arg-type]
    assert not result.alarm, [found.verdict for found in result.findings if found.standing == "proved" and found.exceeded]
    labels = [found.claim for found in result.findings]
    assert labels, "nothing was claimed, so nothing was watched"
    assert len(set(labels)) == len(labels) and not any("ought to refuse" in label for label in labels)
    assert result.epsilon > 0 or not game.simulated, "an attack that shows nothing watches nothing"
    for found in result.findings:
        if found.standing == "refuted":
            assert found.exceeded, f"{found.claim}: {found.verdict}; known to be wrong, and not shown"


def test_the_family_of_audits_is_one_in_a_million() -> None:
    assert len(SCENARIOS) * (1 - CONFIDENCE) < 1e-6
