"""The experiments by name, and how one is run: everything that can be refused is refused before anything is computed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dpmerge.errors import DataError, TrainingError
from dpmerge_lab.experiments.results import Options, Result


@dataclass(frozen=True)
class Experiment:
    """What it shows, the function (Options → Result) that runs it, and what that function needs.

    `data` names the files NAME.npz in the folder of --data, which quick runs may do without; `torch` says that networks are
    trained, so that --device has a meaning.
    """

    about: str
    function: str  # "module:function" in this package, imported when it is run
    data: tuple[str, ...] = ()
    torch: bool = False

    @property
    def needs(self) -> list[str]:
        """In words, for a listing."""
        return [f"{name}.npz" for name in self.data] + ["torch, better with a GPU"] * self.torch


EXPERIMENTS = {
    "mean-estimation": Experiment("two private means, drawn and averaged", "mean_estimation:mean_estimation"),
    "mnist": Experiment("three softmax regressions: heatmaps and frontiers", "mnist:mnist", ("mnist",)),
    "mnist-full-batch": Experiment("full batches, and Poisson ones with coupled runs", "mnist:mnist_full_batch", ("mnist",)),
    "mnist-replace-one": Experiment(
        "three full-batch models under replace-one: heatmaps and frontiers", "mnist:mnist_replace_one", ("mnist",)
    ),
    "last-iterate": Experiment("linear portfolios, if nothing but the release is published", "last_iterate:last_iterate"),
    "knob": Experiment("one portfolio with noise at release, and models trained anew for each ε", "knob:knob"),
    "heads": Experiment("linear heads on public features of CIFAR-10", "heads:heads", ("cifar10-efficientnet-lite0",)),
    "heads-text": Experiment("the same on hashed words of documentation", "heads:heads_text"),
    "shards": Experiment("heads of parts of the data", "heads_parts:shards", ("cifar10-efficientnet-lite0",)),
    "forks": Experiment("heads over one private body", "heads_parts:forks", ("cifar10",)),
    "cifar10": Experiment("ResNet-18 from scratch", "cifar10:cifar10", ("cifar10",), torch=True),
    "cifar10-small": Experiment(
        "small networks from one start and from several", "cifar10:cifar10_small", ("cifar10",), torch=True
    ),
    "cifar10-pretrained": Experiment("ResNet-18, fine-tuned privately", "cifar10:cifar10_pretrained", ("cifar10",), torch=True),
    "cifar10-pretrained-small": Experiment(
        "small networks, fine-tuned privately, on a CPU", "cifar10:cifar10_pretrained_small", ("cifar10",), torch=True
    ),
    "checkpoints": Experiment("random selection over checkpoints of one run", "checkpoints:checkpoints", ("mnist",)),
    "cifar10-checkpoints": Experiment("the same of a ResNet-18", "cifar10:cifar10_checkpoints", ("cifar10",), torch=True),
    "composition": Experiment("joint release against composition of (ε, δ) pairs", "composition:composition"),
    "tuning-cost": Experiment("the price of tuning hyper-parameters privately", "tuning_cost:tuning_cost_figure"),
    "aggregation-mnist": Experiment(
        "aggregates of a softmax regression's iterates", "aggregation_mnist:aggregation_mnist", ("mnist",)
    ),
    "aggregation-cifar10": Experiment(
        "aggregates of a WRN-16-4's iterates", "aggregation_cifar10:aggregation_cifar10", ("cifar10",), torch=True
    ),
    "aggregation-cifar10-small": Experiment(
        "the same of small networks, on a CPU", "aggregation_cifar10:aggregation_cifar10_small", ("cifar10",), torch=True
    ),
    "ftrl": Experiment(
        "user-level DP-FTRL: aggregates, and a banded matrix beside the tree", "ftrl_users:ftrl_users", ("mnist",), torch=True
    ),
    "quadratic": Experiment("the variance of a quadratic's last iterate, from checkpoints", "quadratic:quadratic"),
    "coverage": Experiment("confidence intervals for private linear regression", "coverage:coverage"),
    "tail-averaging": Experiment("last iterates and averages of DP-GD on convex losses", "tail_averaging:tail_averaging"),
    "uncertainty-mnist": Experiment(
        "confidence intervals from checkpoints and from runs", "uncertainty_mnist:uncertainty_mnist", ("mnist",)
    ),
    "uncertainty-cifar10": Experiment(
        "the same of small networks", "uncertainty_cifar10:uncertainty_cifar10", ("cifar10",), torch=True
    ),
}


def find(name: str, options: Options) -> Callable[[], Result]:
    """The experiment, ready to be run with these options, if that can be done here."""
    experiment = EXPERIMENTS.get(name)
    if experiment is None:
        raise TrainingError(f"no experiment is called {name!r}; there are {', '.join(EXPERIMENTS)}")
    if options.seeds < 1:
        raise TrainingError(f"--seeds is {options.seeds}; at least one repetition is needed")
    if options.jobs == 0:
        raise TrainingError("--jobs is 0; give a number of processes, or -1 for one on each core")
    _check_data(name, experiment, options)
    if not experiment.torch and options.device != "cpu":
        raise TrainingError(f"{name} trains no network and runs on the CPU; leave out --device {options.device}")
    module, _, function = experiment.function.partition(":")
    with _in_one_line(name, options):
        if options.device != "cpu":
            # By name: this module is loaded without torch too.
            importlib.import_module("dpmerge_lab.training.private_sgd").device(options.device)
        found: Callable[[Options], Result] = getattr(importlib.import_module(f"dpmerge_lab.experiments.{module}"), function)

    def run() -> Result:
        with _in_one_line(name, options):
            return found(options)

    return run


def _check_data(name: str, experiment: Experiment, options: Options) -> None:
    """Whether the folder has a meaning and is there; the experiment reads it, or knows that it can do without."""
    if options.data is None:
        return
    if not experiment.data:
        raise DataError(f"{name} reads no data; leave out --data")
    if not options.data.is_dir():
        files = " and ".join(f"{data}.npz" for data in experiment.data)
        raise DataError(f"--data {options.data}: no such folder; it must hold {files}")


@contextmanager
def _in_one_line(name: str, options: Options) -> Iterator[None]:
    """What the machine lacks, as an error that says so: torch, or memory."""
    try:
        yield
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.split(".")[0] not in ("torch", "opacus"):
            raise
        raise TrainingError(f"{name} trains networks, which needs torch and Opacus; install dpmerge[torch]") from None
    except MemoryError:
        raise TrainingError(f"{name}: out of memory; use fewer --jobs, or --quick") from None
    except RuntimeError as fault:
        # torch's own classes, known by name or words because this module does not load torch: a GPU's, and the CPU's.
        if type(fault).__name__ != "OutOfMemoryError" and not re.search(r"can't allocate memory|not enough memory", str(fault)):
            raise
        where = "the GPU's memory is too small" if options.device != "cpu" else "out of memory"
        raise TrainingError(f"{name}: {where}; free some, use another --device, or --quick") from None
