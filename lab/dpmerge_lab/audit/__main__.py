"""`python -m dpmerge_lab.audit FOLDER`: every scenario with many trials; the numbers of each, one table and one picture.

    python -m dpmerge_lab.audit lab/results/audit --picture docs/images/soundness.png

Exit code 1: a proved claim was exceeded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dpmerge.audit import as_dict, audit, find_game
from dpmerge.errors import DpmergeError, EvaluationError
from dpmerge.figures import render, require_library
from dpmerge.files import write_json, write_whole
from dpmerge.jobs import ProgressBar
from dpmerge_lab.audit import SCENARIOS
from dpmerge_lab.audit.summary import Row, picture, table

CONFIDENCE = 0.99  # of the whole table: the audits share the rest evenly
SEED = 1  # of the simulators; real trainings take the system's entropy


def main(folder: Path, drawing: Path | None, times: int, jobs: int) -> bool:
    """Audit everything; whether all is well."""
    require_library(".png")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise EvaluationError(f"{folder}: no folder for results can be made there: {fault.strerror or fault}") from None
    rows = []
    for name in SCENARIOS:
        game = find_game(name)
        asked: dict[str, Any] = {"trials": game.trials * times, "seed": SEED} if game.simulated else {}
        confidence = 1 - (1 - CONFIDENCE) / len(SCENARIOS)
        result = audit(game, confidence=confidence, jobs=jobs, progress=ProgressBar(name), **asked)
        write_json(as_dict(result), folder / f"{name}.json")
        rows.append(Row.of(result))
        for finding in result.findings:
            print(f"{name}, {finding.claim} ({finding.standing}): {finding.verdict}", flush=True)
    text, shown = table(rows), render(picture(rows, CONFIDENCE), ".png")
    write_json({"confidence": CONFIDENCE, "rows": [row.as_dict() for row in rows]}, folder / "summary.json")
    write_whole(text.encode(), folder / "summary.md")
    write_whole(shown, drawing or folder / "soundness.png")
    alarms = [row.scenario for row in rows if row.alarm]
    print(f"ALARM: exceeded in {', '.join(alarms)}" if alarms else f"{len(rows)} scenarios, no proved guarantee exceeded")
    return not alarms


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m dpmerge_lab.audit", description="Attack every scenario that ships.")
    parser.add_argument("folder", type=Path, help="for the numbers, the table and the picture")
    parser.add_argument("--picture", type=Path, help="where to draw it instead")
    parser.add_argument("--times", type=int, default=4, help="as many times a simulator's usual number of trials (default 4)")
    parser.add_argument("--jobs", type=int, default=-1, help="processes; -1: one for each core")
    given = parser.parse_args()
    try:
        sys.exit(0 if main(given.folder, given.picture, given.times, given.jobs) else 1)
    except DpmergeError as fault:
        sys.exit(f"error: {fault}")
