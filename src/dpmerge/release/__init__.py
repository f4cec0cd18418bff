"""Merge, certify, verify, and a ledger: the only place where guarantee and tensors meet."""

from dpmerge.release.certificate import Certificate
from dpmerge.release.choice import Choice, Settings, choose
from dpmerge.release.ledger import Entry, Ledger
from dpmerge.release.release import (
    NO_LEDGER,
    Files,
    Merge,
    Preview,
    Released,
    files_to_write,
    preview,
    release,
    release_together,
)
from dpmerge.release.remaining import what_fits
from dpmerge.release.signing import Signer, new_keys, trusted_key
from dpmerge.release.verdict import Verdict
from dpmerge.release.verify import verify

__all__ = [
    "NO_LEDGER",
    "Certificate",
    "Choice",
    "Entry",
    "Files",
    "Ledger",
    "Merge",
    "Preview",
    "Released",
    "Settings",
    "Signer",
    "Verdict",
    "choose",
    "files_to_write",
    "new_keys",
    "preview",
    "release",
    "release_together",
    "trusted_key",
    "verify",
    "what_fits",
]
