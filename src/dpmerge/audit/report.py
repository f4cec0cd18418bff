"""An audit as plain data, and as a figure: claimed and measured ε over δ."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dpmerge.audit.bounds import Attack
from dpmerge.audit.one_run import Guessing
from dpmerge.audit.run import Audit, measured_epsilon
from dpmerge.audit.verdict import Finding
from dpmerge.figures import Line, Panel, Picture
from dpmerge.rules import round_down


def as_dict(audit: Audit) -> dict[str, Any]:
    found, delta = audit.evidence, audit.delta
    evidence: Any
    if isinstance(found, Guessing):
        evidence = {**asdict(found), "guesses": found.guesses, "epsilon_at_least": found.epsilon(delta)}
    else:
        evidence = [_attack(attack, delta) for attack in found]
    return {
        "game": audit.game,
        "about": audit.about,
        "delta": audit.delta,
        "confidence": audit.confidence,
        "trials": audit.trials,
        "seed": audit.seed,
        "method": "one run, randomised canaries" if isinstance(found, Guessing) else "threshold events, Clopper–Pearson limits",
        "epsilon_at_least": audit.epsilon,
        "mu_at_least": audit.mu,
        "epsilon_if_gaussian": audit.epsilon_if_gaussian,
        "ceiling": audit.ceiling,
        "evidence": evidence,
        "claims": [_finding(finding) for finding in audit.findings],
        "alarm": audit.alarm,
        "wall_seconds": audit.wall_seconds,
        "seconds_per_trial": audit.seconds_per_trial,
    }


def _attack(attack: Attack, delta: float) -> dict[str, Any]:
    return {
        "aim": attack.aim,
        "event": str(attack.event),
        "threshold": attack.event.value,
        "above": attack.event.above,
        "counted": attack.counted,
        "hits_with": attack.hits_with,
        "hits_without": attack.hits_without,
        "fpr_at_most": attack.fpr,
        "fnr_at_most": attack.fnr,
        "each_with_confidence": 1 - attack.level,
        "epsilon_at_least": attack.epsilon(delta),
        "mu_at_least": attack.mu,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    curve = [{**asdict(one), "share": one.share} for one in finding.curve]
    return {
        "claim": finding.claim,
        "standing": finding.standing,
        "epsilon": finding.at.claimed,
        "share": finding.at.share,
        "nearest": max(curve, key=lambda one: one["share"]),
        "mu": finding.mu_claimed,
        "mu_share": finding.mu_share,
        "exceeded": finding.exceeded,
        "verdict": finding.verdict,
        "curve": curve,
    }


def picture(audit: Audit) -> Picture:
    """Every claim, and the measured lower bound, as ε over δ."""
    one_run = isinstance(audit.evidence, Guessing)
    deltas = sorted({audit.delta, *(one.delta for finding in audit.findings for one in finding.curve)})
    deltas = [audit.delta] if one_run else deltas
    shown = [round_down(measured_epsilon(audit.evidence, delta)) for delta in deltas]
    measured = Line(label="measured, at least", x=deltas, y=list(shown), standing="measured", markers=True)
    lines = [*map(_claim_line, audit.findings), measured]
    broken = [finding.claim for finding in audit.findings if finding.exceeded]
    what = "canaries" if one_run else "trials of each world"
    return Picture(
        title=audit.about,
        subtitle=f"{audit.game}: {audit.trials} {what}, confidence {audit.confidence:.10g}",
        caption=(
            "Claims are upper bounds on ε; the measured line is a lower bound, with the stated confidence for all δ jointly. A "
            "claim below it is false."
        ),
        warning=f"Exceeded: {', '.join(broken)}." if broken else None,
        panels=[Panel(x_label="δ", y_label="ε", x_scale="log", lines=lines)],
    )


def _claim_line(finding: Finding) -> Line:
    return Line(
        label=finding.claim + (", refuted" if finding.standing == "refuted" else ""),
        x=[one.delta for one in finding.curve],
        y=[one.claimed for one in finding.curve],
        standing="reference" if finding.standing == "refuted" else finding.standing,
        markers=True,
    )
