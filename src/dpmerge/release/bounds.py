"""How large a certificate may be: whoever rechecks it did not choose its numbers, and must be done with bounded work.

Releases are held to the same bounds, so none is made that cannot be rechecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpmerge.records import DpFtrl, DpSgd, Record

MOST_BYTES = 8 << 20  # of certificate.json, a model card, or a configuration
MOST_MODEL_BYTES = 1 << 40  # of one file of tensors; such files are streamed
MOST_VALUES = 200_000  # numbers, texts, lists and objects in certificate.json
MOST_MODELS = 1_000
MOST_PHASES = 10_000  # of all runs together
MOST_STEPS = 100_000_000  # of one run
MOST_MERGED_STEPS = 2_000_000  # runs × steps of the longest, where an average follows its runs step by step
MOST_POINTS = 2**23  # of one grid of a privacy loss
MOST_SECONDS = 600.0  # for the guarantee


def beyond(records: Mapping[str, Record], follows_steps: bool) -> Iterator[str]:
    """What is too large in these records to be rechecked, and where."""
    if len(records) > MOST_MODELS:
        yield f"{len(records):,} models; at most {MOST_MODELS:,} are rechecked"
        return
    phases = longest = 0
    for name, record in records.items():
        for mechanism in record.lineage:
            phases += len(mechanism.phases) if isinstance(mechanism, DpSgd) else 1
            steps = mechanism.steps if isinstance(mechanism, DpSgd | DpFtrl) else 1
            longest = max(longest, steps)
            if steps > MOST_STEPS:
                yield f"a run of {steps:.3g} steps (model {name!r}); at most {MOST_STEPS:,} are rechecked"
    if phases > MOST_PHASES:
        yield f"{phases:,} phases in its records; at most {MOST_PHASES:,} are rechecked"
    if follows_steps and len(records) * longest > MOST_MERGED_STEPS:
        yield (
            f"an average of {len(records)} runs, the longest of {longest:.3g} steps; at most {MOST_MERGED_STEPS:,} steps "
            "(runs × steps of the longest) are rechecked"
        )
