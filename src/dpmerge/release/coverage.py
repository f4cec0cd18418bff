"""What a verdict does not speak of: what was granted when the release was made, and what the files at hand cannot show."""

from __future__ import annotations

from collections.abc import Iterator

from dpmerge.release.certificate import Certificate
from dpmerge.release.forms import RuleForm
from dpmerge.rules import round_up, significant


def granted(rule: RuleForm) -> Iterator[str]:
    """The assumptions that someone granted with the rule: no record says them, and no recheck can refute them."""
    if rule.assume_smoothness is not None:
        beta = float.fromhex(rule.assume_smoothness)
        never = "; no gradient of any model that learns is so" if beta == 0 else ""
        yield f"clipped gradients are {beta:g}-smooth{never}"
    if rule.shuffle_rate is not None:
        yield f"shuffled batches may be accounted as Poisson ones of rate {float.fromhex(rule.shuffle_rate):g}"
    if rule.last_only is not None:
        yield "nothing else of its runs is ever published"


def left_out(certificate: Certificate, *, with_portfolio: bool, with_ledger: bool, trust: str | None) -> Iterator[str]:
    """What was not checked because what it takes was not given, or because nothing shows it."""
    entry = certificate.ledger
    if entry is None:
        yield "ledger total: not checked; the certificate names no ledger, and other releases of the same data add up"
    elif not with_ledger:
        total = f"({round_up(entry.epsilon)}, {significant(entry.delta)})"
        yield f"ledger total: not checked; {total} after entry {entry.number} is the certificate's word; give the ledger"
    if not with_portfolio:
        yield "records, inputs and tensors: not compared with the private models; that takes the portfolio"
    if trust is None:
        yield "who made the certificate: not checked; that takes a public key to trust"
    bound = with_ledger or trust is not None
    if certificate.drawn is not None and not bound:
        yield (
            "that the model was drawn, and with these chances: not checked; its tensors are the same however it was chosen. "
            "The ledger or a trusted signature binds it"
        )
    if not bound:
        yield f"how the weights were chosen ({certificate.provenance}): the word of whoever made the certificate"
    yield "whether each record describes the run that made its model: assumed by every guarantee"
