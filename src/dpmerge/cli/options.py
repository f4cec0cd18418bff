"""Options shared by several commands. Each class is one group (see `commands.options`) and creates the library's arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpmerge.cli.commands import JobsOption, argument, option, options
from dpmerge.errors import TargetError
from dpmerge.profiles import Conversion, ShuffleAsPoisson
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, By, Provenance, require_wanted

if TYPE_CHECKING:
    from dpmerge.planning import Mapper, Utilities

PortfolioArgument = Annotated[Path, argument("Folder of models: one sub-folder each, with a record.json.")]
RunArgument = Annotated[Path, argument("Folder of one run's checkpoints: one sub-folder each, with a record.json.")]
DeltaOption = Annotated[float, option("The δ of the guarantee.")]
AnyDeltaOption = Annotated[bool, option("Allow δ above 0.01: with that probability a record may be revealed completely.")]
UtilityOption = Annotated[
    str | None,
    option("name=value,… stated beforehand, or a file of measured ones. Without it: less predicted noise is better."),
]
KeepMetadataOption = Annotated[
    list[str] | None,
    option("Release this public field of metadata or configurations; others that no loader needs are left out. Repeatable."),
]
ClusterOption = Annotated[str | None, option("A Dask scheduler, tcp://host:port; without it, this machine.")]


@options("Accounting")
class Shuffle:
    treat_shuffle_as_poisson: Annotated[bool, option("Account shuffled batches as Poisson batches. Conditional.")] = False
    shuffle_rate: Annotated[
        float | None, option("With --treat-shuffle-as-poisson: batch size / dataset size; without it, no amplification.")
    ] = None

    @property
    def shuffle(self) -> ShuffleAsPoisson | None:
        if self.shuffle_rate is not None and not self.treat_shuffle_as_poisson:
            raise TargetError("--shuffle-rate needs --treat-shuffle-as-poisson")
        if self.shuffle_rate is not None and not 0 < self.shuffle_rate <= 1:
            raise TargetError(f"--shuffle-rate is {self.shuffle_rate}; it must lie in (0, 1]")
        rate = 1.0 if self.shuffle_rate is None else self.shuffle_rate
        return ShuffleAsPoisson(rate) if self.treat_shuffle_as_poisson else None

    def accounting(self) -> Accounting:
        """The library's `Accounting`, from this command's options."""
        given = {name: value for name, value in vars(self).items() if "shuffle" not in name}
        given["only_release"] = not given.pop("other_releases", False)
        return Accounting(shuffle=self.shuffle, **given)


@options("Accounting")
class Granted(Shuffle):
    any_delta: AnyDeltaOption = False

    def require(self, delta: float | None) -> None:
        require_wanted(delta, self.any_delta)


@options("Accounting")
class Converted(Granted):
    conversion: Annotated[Conversion, option("From Rényi moments to (ε, δ): tight, or the papers'.")] = "tight"


@options("Accounting")
class RunAccounting(Converted):
    by: Annotated[By, option("Privacy loss distributions, Rényi moments, Gaussian DP, or the best that applies.")] = "best"


@options("Accounting")
class Smoothness:
    other_releases: Annotated[
        bool, option("Something else of these runs was or will be published: account for every step, not the last only.")
    ] = False
    assume_smoothness: Annotated[
        float | None, option("Assume gradients with this Lipschitz constant; 0: the papers' formula. Conditional.")
    ] = None


@options("Accounting")
class MergeAccounting(Smoothness, RunAccounting):
    pass


@options("Accounting")
class PointAccounting(Smoothness, Converted):
    """Has no `by`: every combination is accounted by all accountants."""


@options("Question")
class EpsilonOrDelta:
    delta: Annotated[float | None, option("Ask for ε at this δ.")] = None
    epsilon: Annotated[float | None, option("Ask for δ at this ε.")] = None


@options("Utility")
class Utility:
    utility: UtilityOption = None
    provenance: Annotated[
        Provenance | None,
        option("How weights or utilities were obtained. Refused if the utility file says otherwise."),
    ] = None

    def of(self, portfolio: Portfolio) -> Utilities | None:
        from dpmerge.planning import Utilities

        return Utilities.asked(portfolio, self.utility, self.provenance)


@options("Tempered selection")
class Tempered:
    kappa: Annotated[float | None, option("Strength κ of a draw weighted by public scores.")] = None
    validation_epsilon: Annotated[
        float | None, option("Instead of --kappa: ε spent on a private validation set for a draw weighted by its scores.")
    ] = None


@options("Release")
class Releasing:
    out: Annotated[Path, option("A new folder for the released model.")]
    ledger: Annotated[str | None, option("Enter the release in this ledger: a file, or a database URL.")] = None
    depends_on_releases: Annotated[bool, option("The choice depended on earlier releases; the ledger must allow that.")] = False
    sign: Annotated[Path | None, option("Sign the certificate with this private key.")] = None
    card_template: Annotated[
        Path | None, option("Markdown for README.md; the certified section replaces its line <!-- dpmerge:certified -->.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        from dpmerge.release import CardTemplate, Ledger, Signer

        return {
            "ledger": None if self.ledger is None else Ledger(self.ledger),
            "dependent": self.depends_on_releases,
            "signer": None if self.sign is None else Signer(self.sign),
            "template": CardTemplate() if self.card_template is None else CardTemplate.load(self.card_template),
        }


@options("Execution")
class Execution:
    cluster: ClusterOption = None
    jobs: JobsOption = -1

    @contextmanager
    def workers(self, title: str, folder: Path | None = None) -> Iterator[Mapper]:
        """The mapping function. With a folder, finished work is stored there, and a killed run can be continued."""
        from dpmerge.jobs import Finished, ProgressBar, run_all

        run = partial(run_all, cluster=self.cluster, jobs=self.jobs, progress=ProgressBar(title))
        if folder is None:
            yield run
            return
        with Finished(folder / "points.jsonl") as finished:
            yield partial(run, finished=finished)


def parse_targets(text: str) -> list[float]:
    """`0.3:8` (100 targets, evenly spaced in log ε), `0.3:8:200`, or a list `0.5,1,2`."""
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        low, high, *count = (part.strip() for part in text.split(":"))
        first, last, number = float(low), float(high), int(*count) if count else 100
    except (ValueError, TypeError):
        raise TargetError(f"cannot read the targets {text!r}; write 0.3:8, 0.3:8:200 or 0.5,1,2") from None
    if not (0 < first < last and math.isfinite(last) and 2 <= number <= 100_000):
        raise TargetError(f"the targets {text!r} need 0 < low < high and 2 to 100,000 of them")
    ratio = math.log(last / first) / (number - 1)
    return [first * math.exp(ratio * index) for index in range(number - 1)] + [last]
