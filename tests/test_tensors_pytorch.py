"""PyTorch files: state dicts, Opacus' checkpoints, and pickles that want to run code."""

from __future__ import annotations

import importlib.util
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import CheckpointError
from dpmerge.tensors import copy_model, merge_models, open_model, read_tensors
from tests.checkpoint_builders import bits, combine_tensors, single, verify_combination

WEIGHTS = {"a": 0.3, "b": 0.7}
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


def torch() -> Any:
    return pytest.importorskip("torch")


def save(folder: Path, content: Any, name: str = "model.pt", **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch().save(content, folder / name, **options)
    return folder


def state(seed: int, prefix: str = "") -> dict[str, Any]:
    generator = torch().Generator().manual_seed(seed)
    return {
        f"{prefix}weight": torch().randn(300, 400, generator=generator),
        f"{prefix}half": torch().randn(7, generator=generator).to(torch().bfloat16),
        f"{prefix}turned": torch().randn(3, 2, generator=generator).T,
        f"{prefix}steps": torch().tensor(5),
        f"{prefix}flag": torch().tensor([True, False]),
        f"{prefix}none": torch().zeros(0, 3),
    }


@needs_torch
@pytest.mark.parametrize("name", ["model.pt", "model.pth", "pytorch_model.bin"])
@pytest.mark.parametrize("zipped", [True, False])
def test_state_dicts(tmp_path: Path, name: str, zipped: bool) -> None:
    models = {n: save(tmp_path / n, state(seed), name, _use_new_zipfile_serialization=zipped) for seed, n in enumerate("ab")}
    report = merge_models(models, WEIGHTS, tmp_path / "out")
    assert any(f"{name} is a PyTorch file; the tensors are written to model.safetensors" in note for note in report.notes)
    assert set(report.inputs["a"]) == {name} and set(report.outputs) == {"model.safetensors"}
    merged = read_tensors(tmp_path / "out")
    for tensor in ("weight", "turned"):
        total = 0.3 * state(0)[tensor].double().numpy() + 0.7 * state(1)[tensor].double().numpy()
        assert bits(merged[tensor]) == bits(total.astype(np.float32)), tensor
    assert merged["steps"] == 5 and merged["flag"].tolist() == [True, False] and merged["none"].shape == (0, 3)
    assert not verify_combination(models, WEIGHTS, tmp_path / "out")
    from safetensors.torch import load_file

    assert load_file(tmp_path / "out" / "model.safetensors")["half"].dtype == torch().bfloat16


@needs_torch
def test_the_prefix_of_opacus_is_removed(tmp_path: Path) -> None:
    models = {"a": save(tmp_path / "a", state(0, "_module.")), "b": save(tmp_path / "b", state(1))}
    assert set(combine_tensors(models, WEIGHTS)) == set(state(0))
    save(tmp_path / "a", {"_module.x": torch().ones(1), "y": torch().ones(1)})
    with pytest.raises(CheckpointError, match=r"tensor 'y' lacks the prefix '_module\.'"):
        open_model(tmp_path / "a")


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_of_opacus(tmp_path: Path) -> None:
    opacus = pytest.importorskip("opacus", reason="opacus is not installed")
    models = {}
    for seed, name in enumerate("ab"):
        torch().manual_seed(seed)
        module = torch().nn.Linear(3, 2)
        optimizer = torch().optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        data = torch().utils.data.TensorDataset(torch().randn(8, 3), torch().zeros(8, dtype=torch().int64))
        engine = opacus.PrivacyEngine(accountant="rdp")
        module, optimizer, loader = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=torch().utils.data.DataLoader(data, batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for x, y in loader:
            optimizer.zero_grad()
            torch().nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        (tmp_path / name).mkdir()
        engine.save_checkpoint(path=tmp_path / name / "model.pt", module=module, optimizer=optimizer)
        models[name] = tmp_path / name
    report = merge_models(models, WEIGHTS, tmp_path / "out")
    assert set(read_tensors(tmp_path / "out")) == {"weight", "bias"}
    assert any("optimizer_state_dict" in note and "left out" in note for note in report.notes)
    copy_model(models["a"], tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"model.safetensors"}
    assert b"accountant" not in (tmp_path / "copy" / "model.safetensors").read_bytes()


@needs_torch
def test_a_copy_has_the_same_bits(tmp_path: Path) -> None:
    source = save(tmp_path / "a", {"x": torch().tensor([1.0, float("nan"), -0.0])})
    copy_model(source, tmp_path / "out")
    assert bits(read_tensors(tmp_path / "out")["x"]) == bits(np.array([1.0, np.nan, -0.0], np.float32))


class Attack:
    """Runs code when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.target), "w"))


@pytest.mark.parametrize("zipped", [True, False, None])
def test_a_pickle_that_runs_code_is_refused_without_running_it(tmp_path: Path, zipped: bool | None) -> None:
    content = {"x": Attack(tmp_path / "ran")}
    (tmp_path / "m").mkdir()
    if zipped is None or not HAS_TORCH:
        (tmp_path / "m" / "model.pt").write_bytes(pickle.dumps(content))
    else:
        save(tmp_path / "m", content, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"cannot be read without running it") as caught:
        open_model(tmp_path / "m")
    assert not (tmp_path / "ran").exists() and "\n" not in str(caught.value)


@needs_torch
def test_what_is_not_a_state_dict(tmp_path: Path) -> None:
    for content, message in (
        ([torch().ones(1)], "not a state dict; save"),
        ({}, "not a state dict; save"),
        ({"model": {"x": torch().ones(1)}, "epoch": 3}, "'model' is a dict, not a tensor"),
        ({"module_state_dict": {"x": 1.0}}, "'x' is a float, not a tensor"),
        ({"x": torch().ones(3).to_sparse()}, "tensor 'x': a sparse tensor is not supported"),
        ({"x": torch().ones(1, dtype=torch().complex64)}, "tensor 'x': torch.complex64"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_model(save(tmp_path / "m", content))
    (tmp_path / "m" / "model.pt").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_model(tmp_path / "m")


def _deflated(content: bytes, added: int = 0) -> bytes:
    """The same zip file, compressed; its program with so many zeros behind it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + bytes(added if name.endswith("data.pkl") else 0))
    return out.getvalue()


def _program(content: bytes, program: bytes) -> bytes:
    """The same zip file with another pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, program if name.endswith("data.pkl") else old.read(name))
    return out.getvalue()


@needs_torch
def test_hostile_files_are_one_line_and_small(tmp_path: Path) -> None:
    """Each could ask for gigabytes, hours or a function call, some in a few hundred bytes."""
    save(tmp_path / "m", {"x": torch().arange(1000.0)})
    path = tmp_path / "m" / "model.pt"
    plain = path.read_bytes()
    save(tmp_path / "m", {"x": torch().arange(1000.0)}, _use_new_zipfile_serialization=False)
    old = path.read_bytes()
    doubled = b"\x80\x02}(X\x01\x00\x00\x00a)q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
    for content, message in (
        (_deflated(plain, 1 << 24), "is compressed"),
        (plain.replace(b"PK\x01\x02", b"PK\x01\x03", 1), "damaged zip"),
        (_program(plain, b"\x80\x02c__builtin__\nbytearray\nJ\x00\x00\x00\x70\x85R."), "needs '__builtin__.bytearray'"),
        (_program(plain, doubled + b"K\x01su."), "a key is a tuple|damaged pickle"),
        (_program(plain, b"\x80\x02" + b"]" * 100_000 + b"."), "not a state dict"),
        (_program(plain, b"\x80\x02" + b"K"), "cannot be read"),
        (plain[: len(plain) // 2], "cannot be read"),
        (old.replace(b"M\xe8\x03", b"J\x00\x00\x00\x70"), "has not the size|larger than its storage"),
        (old[:-1], "has not the size"),
        (b"", "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=message) as caught:
            open_model(tmp_path / "m")
        assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)
    negated = torch().view_as_complex(torch().ones(4, 2)).conj().imag
    assert negated.is_neg()
    for tensor, message in (
        (torch().zeros(1).expand(10**12), "so some of them are expanded"),
        (torch().empty(10**12, device="meta"), "device meta, which has no values"),
        (negated, "negated or conjugated view"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_model(save(tmp_path / "m", {"x": tensor}))
    with pytest.raises(CheckpointError, match="half a surrogate pair"):
        open_model(save(tmp_path / "m", {"x\ud800": torch().ones(1)}))


@needs_torch
def test_views_of_every_kind_have_the_values_that_torch_gives(tmp_path: Path) -> None:
    base = torch().arange(24.0)
    views = {
        "turned": base.reshape(4, 6).T,
        "stepped": base[1::3],
        "expanded": base[5:6].expand(3, 2),
        "shifted": base[7:].reshape(17, 1),
        "scalar": base[3],
        "empty, after the end": torch().zeros(2, 2)[1:, 2:][1:],
        "odd strides": base.as_strided((1, 2), (10**15, 3), 2),
        "parameter": torch().nn.Parameter(base.double()),
        "small": torch().tensor([1, 2], dtype=torch().uint16),
    }
    for zipped in (True, False):
        with open_model(save(tmp_path / str(zipped), views, _use_new_zipfile_serialization=zipped)) as model:
            for name, tensor in model.tensors.items():
                expected = views[name].detach().contiguous().numpy()
                assert tensor.shape == expected.shape and bits(tensor.load()) == bits(expected), name


@needs_torch
def test_tied_tensors(tmp_path: Path) -> None:
    def tied(seed: int) -> dict[str, Any]:
        weight = state(seed)["weight"]
        return {"embed": weight, "head": weight, "part": weight[:2]}

    def untied(seed: int) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in tied(seed).items()}

    both = {n: save(tmp_path / n, tied(seed)) for seed, n in enumerate("ab")}
    merge_models(both, WEIGHTS, tmp_path / "out")
    merged = read_tensors(tmp_path / "out")
    assert bits(merged["embed"]) == bits(merged["head"])
    one = {"a": both["a"], "c": save(tmp_path / "c", untied(1))}
    with pytest.raises(CheckpointError, match="'embed', 'head' are tied in model 'a' but not in model 'c'"):
        merge_models(one, {"a": 0.5, "c": 0.5}, tmp_path / "never")
    with pytest.raises(CheckpointError, match="'embed', 'head' are tied in model 'a' but not in model 'c'"):
        merge_models(dict(reversed(one.items())), {"a": 0.5, "c": 0.5}, tmp_path / "never")


@needs_torch
def test_pytorch_and_safetensors_merge_by_name(tmp_path: Path) -> None:
    values = np.array([1.0, 2.0], np.float32)
    models = {"a": save(tmp_path / "a", {"x": torch().tensor(values)}), "b": single(tmp_path / "b", {"x": 3 * values})}
    assert combine_tensors(models, {"a": 0.5, "b": 0.5})["x"].tolist() == [2.0, 4.0]
