"""Options that several commands share. Each dataclass is one group (see `app.add`), and makes what the library takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from dpmerge.cli.app import argument, option
from dpmerge.errors import TargetError

if TYPE_CHECKING:
    from dpmerge.planning import Accounting, Mapper, Utilities
    from dpmerge.profiles import ShuffleAsPoisson
    from dpmerge.records import Portfolio

PortfolioArgument = Annotated[Path, argument("Folder of models: one sub-folder each, with a record.json.")]
RunArgument = Annotated[Path, argument("Folder of one run's checkpoints: one sub-folder each, with a record.json.")]
DeltaOption = Annotated[float, option("The δ of the guarantee.")]
AnyDeltaOption = Annotated[bool, option("Allow δ above 0.01: a whole record may be lost with that probability.")]
UtilityOption = Annotated[
    str | None,
    option("name=value,… stated beforehand, or a file of measured ones. Without it: less private is better."),
]
JobsOption = Annotated[int, option("Processes on this machine; -1: one for each core.")]
ClusterOption = Annotated[str | None, option("A Dask scheduler, tcp://host:port; without it, this machine.")]
JsonOption = Annotated[bool, option("Print JSON.")]
Looked = Literal["a-priori", "after-looking"]


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """What the user grants about shuffled batches."""

    heading: ClassVar[str] = "Accounting"
    treat_shuffle_as_poisson: Annotated[bool, option("Account shuffled batches as Poisson batches. Conditional.")] = False
    shuffle_rate: Annotated[
        float | None, option("With --treat-shuffle-as-poisson: batch size / dataset size. Without it, no amplification.")
    ] = None

    @property
    def shuffle(self) -> ShuffleAsPoisson | None:
        from dpmerge.profiles import ShuffleAsPoisson

        if self.shuffle_rate is not None and not self.treat_shuffle_as_poisson:
            raise TargetError("--shuffle-rate only has a meaning together with --treat-shuffle-as-poisson")
        if self.shuffle_rate is not None and not 0 < self.shuffle_rate <= 1:
            raise TargetError(f"--shuffle-rate is {self.shuffle_rate}; it must lie in (0, 1]")
        rate = 1.0 if self.shuffle_rate is None else self.shuffle_rate
        return ShuffleAsPoisson(rate) if self.treat_shuffle_as_poisson else None

    def accounting(self) -> Accounting:
        """What the library takes, with everything that this command has options for."""
        from dpmerge.planning import Accounting

        names = ("by", "conversion", "assume_smoothness", "any_delta")
        return Accounting(shuffle=self.shuffle, **{name: getattr(self, name) for name in names if hasattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class Granted(Shuffle):
    """What the user grants, for commands that ask every accountant."""

    any_delta: AnyDeltaOption = False

    def require(self, delta: float | None) -> None:
        from dpmerge.rules import require_wanted

        require_wanted(delta, self.any_delta)


@dataclass(frozen=True, kw_only=True)
class Converted(Granted):
    """How Rényi moments become (ε, δ)."""

    conversion: Annotated[Literal["tight", "paper"], option("From Rényi moments to (ε, δ): the tight one, or the papers'.")] = (
        "tight"
    )


@dataclass(frozen=True, kw_only=True)
class RunAccounting(Converted):
    """How a guarantee about runs is computed."""

    by: Annotated[
        Literal["best", "pld", "rdp", "gdp"],
        option("Privacy loss distributions, Rényi moments, Gaussian DP, or the best that applies."),
    ] = "best"


@dataclass(frozen=True, kw_only=True)
class Smoothness:
    """What the user grants about the gradients of linear combinations."""

    heading: ClassVar[str] = "Accounting"
    assume_smoothness: Annotated[
        float | None, option("Assume gradients with this Lipschitz constant; 0: the papers' formula. Conditional.")
    ] = None

    def __post_init__(self) -> None:
        given = self.assume_smoothness
        if given is not None and not (math.isfinite(given) and given >= 0):
            raise TargetError(f"--assume-smoothness is {given}; it must be finite and not negative")


@dataclass(frozen=True, kw_only=True)
class MergeAccounting(Smoothness, RunAccounting):
    """How a guarantee about a merge is computed."""


@dataclass(frozen=True, kw_only=True)
class PointAccounting(Smoothness, Converted):
    """How many linear combinations are computed, each by every accountant."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Half of an (ε, δ): the answer is the other half."""

    heading: ClassVar[str] = "Question"
    delta: Annotated[float | None, option("Ask for ε at this δ.")] = None
    epsilon: Annotated[float | None, option("Ask for δ at this ε.")] = None


@dataclass(frozen=True, kw_only=True)
class Utility:
    """How good the models are, and how that is known."""

    heading: ClassVar[str] = "Utility"
    utility: UtilityOption = None
    provenance: Annotated[
        Literal["a-priori", "after-looking", "private-validation"] | None,
        option("How the choice was made, or utilities known. Refused if their file says otherwise."),
    ] = None

    def of(self, portfolio: Portfolio) -> Utilities | None:
        from dpmerge.planning import Utilities

        return Utilities.asked(portfolio, self.utility, self.provenance)


@dataclass(frozen=True, kw_only=True)
class Tempered:
    """How strongly a tempered draw prefers better models."""

    heading: ClassVar[str] = "Tempered selection"
    kappa: Annotated[float | None, option("Strength of the draw by public scores.")] = None
    validation_epsilon: Annotated[
        float | None, option("Instead of --kappa: the ε that a private validation set pays for a draw by its scores.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Releasing:
    """Where a release goes and who vouches for it."""

    heading: ClassVar[str] = "Release"
    out: Annotated[Path, option("A new folder for the released model.")]
    ledger: Annotated[str | None, option("Enter the release in this ledger: a file, or a database URL.")] = None
    depends_on_releases: Annotated[bool, option("The choice used earlier releases: the ledger must provide for that.")] = False
    sign: Annotated[Path | None, option("Sign the certificate with this private key.")] = None

    def arguments(self) -> dict[str, Any]:
        from dpmerge.release import Ledger, Signer

        return {
            "ledger": None if self.ledger is None else Ledger(self.ledger),
            "dependent": self.depends_on_releases,
            "signer": None if self.sign is None else Signer(self.sign),
        }


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where many pieces of work run."""

    heading: ClassVar[str] = "Execution"
    cluster: ClusterOption = None
    jobs: JobsOption = -1

    @contextmanager
    def workers(self, title: str, folder: Path | None = None) -> Iterator[Mapper]:
        """The mapping function. With a folder, finished work is kept there, and a run that was killed continues."""
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
