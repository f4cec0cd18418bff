"""Merge, certify, verify, and a ledger: the only place where guarantee and tensors meet."""

from dpmerge.release.bounds import MOST_SECONDS as MOST_SECONDS
from dpmerge.release.card import model_card as model_card
from dpmerge.release.certificate import (
    CARD as CARD,
    NAME as NAME,
    Certificate as Certificate,
    GuaranteeForm as GuaranteeForm,
    draft as draft,
)
from dpmerge.release.choice import Chosen as Chosen, choose as choose, chosen as chosen
from dpmerge.release.closing import State as State, state_of as state_of
from dpmerge.release.entering import total_after as total_after, what_fits as what_fits
from dpmerge.release.entries import Entry as Entry, unfinished as unfinished
from dpmerge.release.floor import Floor as Floor, enter_floor as enter_floor
from dpmerge.release.forms import RuleForm as RuleForm
from dpmerge.release.joining import RECORD as RECORD, record_of as record_of
from dpmerge.release.ladder import spared as spared
from dpmerge.release.ledger import Ledger as Ledger
from dpmerge.release.making import Merge as Merge, Released as Released
from dpmerge.release.readme import CardTemplate as CardTemplate, certified_section as certified_section
from dpmerge.release.recheck import Verdict as Verdict
from dpmerge.release.release import (
    NO_LEDGER as NO_LEDGER,
    Files as Files,
    Preview as Preview,
    files_to_write as files_to_write,
    preview as preview,
    reading as reading,
    release as release,
    release_together as release_together,
)
from dpmerge.release.renoise import renoise as renoise
from dpmerge.release.signing import Signer as Signer, new_keys as new_keys, trusted_key as trusted_key
from dpmerge.release.summary import ENTRY_COLUMNS as ENTRY_COLUMNS, entry_row as entry_row
from dpmerge.release.verify import verify as verify
