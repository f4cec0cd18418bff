"""A release between its entry in the ledger and its name: what becomes of the entry if it never gets one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import ROUND_DOWN, Context, Decimal
from pathlib import Path
from typing import Any

from dpmerge.errors import AccountingError, BudgetExceeded, DpmergeError, LedgerError
from dpmerge.planning import Option, Total, blend
from dpmerge.records import Portfolio, Weights
from dpmerge.release.choice import form_of
from dpmerge.release.closing import certificates_at
from dpmerge.release.entries import Entry, PendingEntry, unfinished
from dpmerge.release.forms import RuleForm
from dpmerge.release.known import identities
from dpmerge.release.ladder import NEW_LADDER, Ladders
from dpmerge.release.ledger import Ledger
from dpmerge.rules import round_up, significant
from dpmerge.tensors import abandoned_proofs, is_proof, new_folder, remove_proof


@dataclass
class Entered:
    """A temporary folder to write into, and the entry that was made before it; the writer fills in `certificates`."""

    folder: Path
    entry: Entry | None
    notes: list[str]
    drawn: tuple[str, ...]
    certificates: list[str] = field(default_factory=list)


@contextmanager
def entered(ledger: Ledger | None, planned: PendingEntry, weights: Weights, out: Path) -> Iterator[Entered]:
    """Enter a release, yield the folder that becomes `out`, and complete the entry when it has.

    If it never does, nothing was released, and the entry is voided. Either way the error says what was spent.
    """
    if ledger is None:
        with new_folder(out) as folder:
            yield Entered(folder, None, [], planned.drawn)
        return
    notes = ledger.recover()  # first: it looks at what interrupted releases left
    _remove_left(ledger, out.parent)
    entry: Entry | None = None
    temporary = Path()
    try:
        with new_folder(out, proof_for=ledger.id) as folder:
            temporary = folder.resolve()
            entry = _enter(ledger, replace(planned, temporary=str(temporary)), weights, notes)
            drawn = tuple(entry.content["names"][name] for name in entry.content.get("drawn", ()))
            made = Entered(folder, entry, notes, drawn)
            yield made
            ledger.require_entered(entry)
        notes += ledger.complete(entry, made.certificates)
    except BaseException as fault:
        entry = entry or _entered_all_the_same(ledger, temporary, fault)
        if entry is None:
            raise
        told = _what_was_spent(ledger, entry, temporary, out)
        if isinstance(fault, DpmergeError):
            raise type(fault)(f"{fault}; {told}") from fault
        fault.add_note(told)
        raise


def _remove_left(ledger: Ledger, parent: Path) -> None:
    """Remove folders whose maker ended before it entered anything, or before it removed what an entry needs no more."""
    if not parent.is_dir():
        return
    with abandoned_proofs(ledger.id, parent) as left:
        needed = {entry.content.get("temporary") for entry in unfinished(ledger.history())} if left else set()
        for folder in left:
            if str(folder.resolve()) not in needed:
                remove_proof(folder)


def _entered_all_the_same(ledger: Ledger, temporary: Path, fault: BaseException) -> Entry | None:
    """An entry whose transaction was committed, though its maker was not told so: a connection may be lost in between."""
    try:
        found = None if isinstance(fault, BudgetExceeded) else ledger.entry_in(temporary)
    except LedgerError:
        return None  # the folder stays, as the proof by which the next release voids the entry, if there is one
    if found is None:
        remove_proof(temporary)
    return found


def _enter(ledger: Ledger, planned: PendingEntry, weights: Weights, notes: list[str]) -> Entry:
    """A refusal says what would still fit."""
    try:
        return ledger.enter(planned, notes)
    except BudgetExceeded as refusal:
        raise BudgetExceeded(f"{refusal}; {in_words(ledger, planned.portfolio, weights, planned.dependent)}") from None


def _what_was_spent(ledger: Ledger, entry: Entry, temporary: Path, out: Path) -> str:
    """Void the entry of a release that failed, where its folder still has its temporary name; and say so."""
    where = f"entry {entry.number} of {ledger.name}"
    if not is_proof(temporary):
        try:
            ledger.require_entered(entry)
        except LedgerError as fault:
            return f"the release may be out, at {out}, and may not be counted: {fault}"
        total = entry.content["total"]
        spent = f"all releases together are ({round_up(total['epsilon'])}, {significant(total['delta'])})-DP"
        if certificates_at(entry):
            return f"the release is out, at {out}: {where} counts, and the next release or check with it completes it; {spent}"
        return f"{where} stands, for the release may have been seen: {spent}"
    try:
        ledger.void_unseen(entry, "it failed before its folder got its name")
    except LedgerError as fault:
        return f"nothing was released, but {where} could not be voided ({fault}); it counts until the next release voids it"
    remove_proof(temporary)
    return f"nothing was released; {where} was voided, and nothing was spent"


# --- what a budget still allows, on top of everything released before ---------------------------------------------------------


def total_after(ledger: Ledger, option: Option) -> Total:
    """What everything entered and this option of a plan would guarantee together; if that passes the budget, why not."""
    portfolio, form = option.weights.portfolio, form_of(option)
    assert option.guarantee is not None
    if form.noise is not None:
        known = ledger.account().ladder_of(form.renamed(identities(portfolio)))
        kept = [Ladders(model.folder.parent) for model in portfolio.models[:1] if model.folder is not None]
        again = known is not None and any(known in ladders.ids() for ladders in kept)
        form = form.model_copy(update={"ladder": known if again else NEW_LADDER})
    planned = PendingEntry((form,), portfolio, form.exposure(portfolio), (option.guarantee,), "")
    found = ledger.total_with(planned)
    if found.fits or found.why:
        return found
    total, budget = found.guarantee, ledger.budget
    why = (
        f"the ledger's total would be ε = {round_up(total.epsilon)} at δ = {significant(total.delta)}; the budget is "
        f"ε = {budget.epsilon:g} at δ = {budget.delta:g}"
    )
    return replace(found, why=why)


_DIGITS = Context(prec=3, rounding=ROUND_DOWN)  # rounded down to three digits, then rechecked


def what_fits(ledger: Ledger, portfolio: Portfolio) -> dict[str, Any]:
    """Which models may still be released alone, and how much weight each may have in a selection with the safest."""
    room = _Room(ledger, portfolio, ledger.history())
    alone = room.alone()
    safest = alone[0] if alone else None
    shares: dict[str, float] = {}
    if safest is not None:
        start = portfolio.weights({safest: 1.0})
        others = {name: portfolio.weights({name: 1.0}) for name in portfolio.names if name not in alone}
        shares = {name: float(_down(room.largest_share(start, end))) for name, end in others.items()}
    text = [f"  may be released alone: {', '.join(alone) or 'none'}"]
    text += [f"  {name}: with probability up to {share:g} in a selection with {safest}" for name, share in shares.items()]
    return {"alone": alone, "in_selection_with": safest, "largest_probability": shares, "text": text}


def in_words(ledger: Ledger, portfolio: Portfolio, weights: Weights, dependent: bool = False) -> str:
    """What would still fit instead of a release that does not: the same selection with more weight on the safest model."""
    room = _Room(ledger, portfolio, ledger.history(), dependent)
    alone = room.alone()
    if not alone:
        return "no model of this portfolio would still fit alone"
    safest = alone[0]
    start = portfolio.weights({safest: 1.0})
    found = f"what would still fit: {' or '.join(alone)} alone"
    mixed = _as_said(safest, blend(start, weights, room.largest_share(start, weights)))
    if len(mixed) == 1 or not room.fits(portfolio.weights({name: float(value) for name, value in mixed.items()})):
        return found
    return f"{found}, or a selection with {','.join(f'{name}={value:f}' for name, value in mixed.items())}"


@dataclass(frozen=True)
class _Room:
    """What is left for selections from one portfolio, in a ledger as it was when asked."""

    ledger: Ledger
    portfolio: Portfolio
    entries: list[Entry]
    dependent: bool = False

    def spent(self, weights: Weights) -> float:
        """How much of the budget all releases and this selection take together: at most 1 if they fit."""
        form = RuleForm(rule="selection", weights={model.name: weight.hex() for model, weight in weights.used})
        planned = PendingEntry((form,), self.portfolio, form.exposure(self.portfolio), (), "", self.dependent)
        most = 1 / self.ledger.budget.delta  # the share of a release without privacy
        try:
            return min(self.ledger.share(self.entries, planned), most)
        except AccountingError:
            return most

    def fits(self, weights: Weights) -> bool:
        return self.spent(weights) <= 1

    def alone(self) -> list[str]:
        """The models that may be released alone, the safest first."""
        spent = {name: self.spent(self.portfolio.weights({name: 1.0})) for name in self.portfolio.names}
        return sorted((name for name in spent if spent[name] <= 1), key=spent.__getitem__)

    def largest_share(self, start: Weights, end: Weights) -> float:
        """How far selection weights may go from `start`, which fits, to `end`: from below, to about three digits.

        The δ spent is the larger of two directions, each linear in the share, so a straight line between two points lies
        above it: where that meets the budget, the share still fits. By Rényi divergences it may not, and the end moves.
        """
        low, at_low, high, at_high = 0.0, self.spent(start), 1.0, self.spent(end)
        if at_high <= 1:
            return 1.0
        for _ in range(8):
            if at_low >= 0.998:
                break
            middle = low + (high - low) * (0.999 - at_low) / (at_high - at_low)
            found = self.spent(blend(start, end, middle))
            if found <= 1:
                low, at_low = middle, found
            else:
                high, at_high = middle, found
        return low


def _down(value: float) -> Decimal:
    return _DIGITS.create_decimal_from_float(value)


def _as_said(safest: str, weights: Weights) -> dict[str, Decimal]:
    """Weights rounded down to three digits; what that leaves goes to the safest model."""
    said = {model.name: _down(weight) for model, weight in weights.used if model.name != safest}
    rest = 1 - sum(said.values(), Decimal(0))
    return {safest: rest, **said} if rest else said
