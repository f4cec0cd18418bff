"""Two processes train one model with Opacus, for the tests of the recorder: `python -m tests.ddp_workers RANK PORT FOLDER`."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

from dpmerge.errors import TrainingError
from dpmerge.records import Record
from dpmerge.training import opacus_history, record, recorder_randomness
from tests.opacus_builders import Private, examples, network, private

WORLD = 2


def gathered(mine: Any) -> list[Any]:
    found: list[Any] = [None] * WORLD
    distributed.all_gather_object(found, mine)
    return found


def small(mode: str = "hooks", shell: Any = DifferentiallyPrivateDistributedDataParallel, **options: Any) -> Private:
    """Twenty records, two of them in a batch: each process has an empty one in three."""
    return private(mode, **{"batch": 2, "count": 20, "build": lambda: shell(network()), **options})


def clipped_sum(state: dict[str, Any], batches: list[Any], clip: float) -> list[Any]:
    """Gradients of all processes' examples, one by one, clipped and added up."""
    plain = network()
    plain.load_state_dict(state)
    total = [torch.zeros_like(parameter) for parameter in plain.parameters()]
    for inputs, labels in batches:
        for x, y in zip(inputs, labels, strict=True):
            gradient = torch.autograd.grad(nn.functional.cross_entropy(plain(x[None]), y[None]), list(plain.parameters()))
            norm = float(torch.stack([one.norm() for one in gradient]).norm())
            for one, whole in zip(gradient, total, strict=True):
                whole += one * min(1.0, clip / (norm + 1e-6))
    return total


def recorded(mode: str, shell: Any, folder: Path | None = None, clip: Any = 0.3, **options: Any) -> dict[str, Any]:
    """Steps without noise: how far they are from the record's account, and what it says."""
    run = small(mode, shell, sigma=0.0, clip=clip, **options)
    recorder = record(*run.parts, dataset="d")
    inner, worst, sizes = run.module._module.module, 0.0, []
    for inputs, labels in run.loader:
        before = {name: value.clone() for name, value in inner.state_dict().items()}
        whole = clipped_sum(before, gathered((inputs, labels)), clip) if isinstance(clip, float) else None
        run.step(inputs, labels)
        sizes.append(len(labels))
        if whole is not None:
            after = inner.state_dict().values()
            moves = zip(before.values(), after, whole, strict=True)
            worst = max(worst, *(float((old - new - 0.1 * one / 2).abs().max()) for old, new, one in moves))
    if folder is not None:
        recorder.save(folder)
        distributed.barrier()
    held = recorder.record().mechanism.model_dump(mode="json")
    return {"worst": worst, "sizes": sizes, "mechanism": held, "history": run.engine.accountant.history}


def noise() -> float:
    """The standard deviation of the noise on the sum, over that of one process' noise."""
    run = small(sigma=1000.0)
    recorder = record(*run.parts, dataset="d")
    moves = []
    for inputs, labels in run.loader:
        before = [parameter.detach().clone() for parameter in run.module.parameters()]
        run.step(inputs, labels)
        moves += [(old - new).detach().flatten() for old, new in zip(before, run.module.parameters(), strict=True)]
    assert opacus_history(recorder.record()) == run.engine.accountant.history
    return float(torch.cat(moves).std() * 2 / 0.1 / 1000)


def refusal(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except TrainingError as fault:
        return str(fault)
    return "nothing refused"


def own_data() -> None:
    """Each process has half of the data to itself."""
    half = Subset(examples(40), range(20 * distributed.get_rank(), 20 * distributed.get_rank() + 20))
    record(*small(loader=DataLoader(half, batch_size=2)).parts, dataset="d")


def sealed() -> None:
    """A loader whose generator does not tell its state."""

    class Sealed:
        device = torch.device("cpu")

    run = small()
    run.loader.batch_sampler.generator = Sealed()
    record(*run.parts, dataset="d")


def fork(folder: Path) -> dict[str, Any]:
    """A run that starts from what the run before saved in the same processes: what the first process says of it."""
    body = small()
    recorder = record(*body.parts, dataset="d")
    body.train()
    recorder.save(folder)
    distributed.barrier()
    run = small()
    run.module._module.module.load_state_dict(body.module._module.module.state_dict())
    recorder = record(*run.parts, dataset="d")
    run.train()
    said = recorder.record().mechanism.model_dump(mode="json")
    return {"starts_from": said.get("starts_from"), "body": Record.load(folder / "record.json").mechanism.run}


def same_seed() -> None:
    torch.manual_seed(3)
    try:
        record(*small().parts, dataset="d")
    finally:
        torch.seed()


def seed_of_the_noise() -> None:
    """The second process draws batches with the seed of the first one's noise."""
    noise = torch.Generator().manual_seed(9)
    if distributed.get_rank() == 1:
        torch.manual_seed(9)
    try:
        record(*small(noise_generator=noise).parts, dataset="d")
    finally:
        torch.seed()


def same_seed_elsewhere() -> None:
    torch.manual_seed(3)
    torch.rand(distributed.get_rank() + 1)
    try:
        record(*small().parts, dataset="d")
    finally:
        torch.seed()


def different_clips() -> None:
    run = small(clip=1.0 + distributed.get_rank())
    record(*run.parts, dataset="d")
    run.train()


def changed_in_one() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(1))
            self.seen: torch.Tensor

        def forward(self, inputs: Any) -> Any:
            self.seen += distributed.get_rank()
            return self.body(inputs)

    run = small(build=lambda: DifferentiallyPrivateDistributedDataParallel(Counting()))
    recorder = record(*run.parts, dataset="d")
    run.train()
    recorder.record()


def everything_in_each() -> None:
    loader = DataLoader(examples(20), batch_size=2, shuffle=True)
    record(*small(loader=loader, poisson_sampling=False).parts, dataset="d")


def main(rank: int, folder: Path) -> None:
    meeting = f"file://{folder / 'meeting'}"  # no port, which another process could take
    distributed.init_process_group("gloo", meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    recorder_randomness._COST = 2
    shells = {"private": DifferentiallyPrivateDistributedDataParallel, "torch": DistributedDataParallel}
    found = {
        "hooks": recorded("hooks", shells["private"], folder / "a"),
        "functorch": recorded("functorch", shells["private"]),
        "ghost": recorded("ghost", shells["private"]),
        "torch": recorded("hooks", shells["torch"]),
        "layers": recorded("hooks", shells["private"], clip=[1.0, 1.0, 1.0, 1.0], clipping="per_layer"),
        "noise": noise(),
        "fork": fork(folder / "body"),
        "refusals": {
            "torch's shell in ghost mode": refusal(lambda: record(*small("ghost", shells["torch"]).parts, dataset="d")),
            "own data": refusal(own_data),
            "sealed": refusal(sealed),
            "seed of the noise": refusal(seed_of_the_noise),
            "same seed": refusal(same_seed),
            "same seed elsewhere": refusal(same_seed_elsewhere),
            "different clips": refusal(different_clips),
            "changed in one": refusal(changed_in_one),
            "everything in each": refusal(everything_in_each),
            "norm bound": refusal(lambda: record(*small().parts, dataset="d", norm_bound=1.0)),
        },
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
    # Threads that torch leaves behind may abort the interpreter's end ("terminate called without an active exception").
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
