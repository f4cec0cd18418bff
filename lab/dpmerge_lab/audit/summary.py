"""All scenarios on one page: claim, proved bound and measured lower bound side by side, as a table and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpmerge.audit import Audit, Finding
from dpmerge.figures import Line, Panel, Picture
from dpmerge.rules import round_down, round_up


@dataclass(frozen=True)
class Row:
    """One scenario: ε at its δ as the refuted (or conditional) claim has it, as is proved at least, and as was measured."""

    scenario: str
    about: str
    delta: float
    trials: int
    claim: str | None
    claimed: float | None
    proved_by: str | None
    proved: float | None
    measured: float
    reached: float | None  # measured/proved, at the δ where that is largest, or of a proved μ
    exceeded: bool | None  # the claim; whether a proved bound is, the alarm says
    alarm: bool

    @classmethod
    def of(cls, audit: Audit) -> Row:
        """The smallest proved bound, and the largest of the other claims."""
        proved = [finding for finding in audit.findings if finding.standing == "proved"]
        others = [finding for finding in audit.findings if finding.standing != "proved"]
        best = min(proved, key=lambda finding: finding.at.claimed, default=None)
        other = max(others, key=lambda finding: finding.at.claimed, default=None)
        return cls(
            scenario=audit.game,
            about=audit.about,
            delta=audit.delta,
            trials=audit.trials,
            claim=None if other is None else other.claim,
            claimed=None if other is None else other.at.claimed,
            proved_by=None if best is None else best.claim,
            proved=None if best is None else best.at.claimed,
            measured=audit.epsilon,
            reached=None if best is None else _reached(best),
            exceeded=None if other is None else other.exceeded,
            alarm=audit.alarm,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def _reached(finding: Finding) -> float:
    return max(finding.nearest.share, finding.mu_share or 0.0)


def table(rows: Sequence[Row]) -> str:
    """In Markdown: claims and proved bounds are rounded up, what was measured and how near it came is rounded down."""
    head = ["", "scenario", "δ", "claim", "ε claimed", "ε measured, at least", "ε proved, at most", "by", "reached"]
    lines = [head, ["---"] * len(head)]
    for number, row in enumerate(rows, start=1):
        claimed = "" if row.claimed is None else round_up(row.claimed, 3) + (" ✗" if row.exceeded else "")
        proved = "" if row.proved is None else round_up(row.proved, 3)
        reached = "" if row.reached is None else f"{math.floor(100 * row.reached)} %" if row.reached <= 1 else "exceeded"
        measured = f"{round_down(row.measured):g}"
        told = [f"`{row.scenario}`", f"{row.delta:g}", row.claim or "", claimed, measured, proved, row.proved_by or "", reached]
        lines.append([str(number), *told])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def picture(rows: Sequence[Row], confidence: float) -> Picture:
    """A column for each scenario."""
    measured = [round_down(row.measured) or None for row in rows]  # a logarithmic axis has no 0
    proved = [row.proved for row in rows]
    lines = [
        *_marks("proved, at most", "proved", proved),
        *_marks("measured, at least", "measured", measured),
        *_marks("claim that is refuted", "measured", [row.claimed for row in rows]),
        *_between(measured, proved),
    ]
    scenarios = [row.scenario for row in rows]
    return Picture(
        title="Claimed, proved and measured: ε of every scenario",
        subtitle=f"at each scenario's own δ; what was measured holds, all of it together, with confidence {confidence:g}",
        warning="A proved bound was exceeded." if any(row.alarm for row in rows) else None,
        panels=[Panel(x_label="scenario", y_label="ε", y_scale="log", categories=scenarios, lines=lines)],
    )


def _marks(label: str, standing: Literal["proved", "measured"], values: list[float | None]) -> Iterator[Line]:
    if any(value is not None for value in values):
        places = [float(index) for index in range(len(values))]
        yield Line(label=label, x=places, y=values, standing=standing, joined=False)


def _between(lows: list[float | None], highs: list[float | None]) -> Iterator[Line]:
    """A vertical line in each column that has both ends, with a gap after it."""
    x: list[float] = []
    y: list[float | None] = []
    for place, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if low is not None and high is not None:
            x += [float(place)] * 3
            y += [low, high, None]
    if x:
        yield Line(label="the truth lies here", x=x, y=y, standing="reference")
