"""Files from elsewhere: headers that lie, indexes that lead out of the folder, folders that would have to be guessed at."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load, save, save_file

from dpmerge.errors import CheckpointError
from dpmerge.tensors import open_model, read_tensors
from tests.checkpoint_builders import adapter, sharded, single, write_raw

ONE = {"x": np.ones(4, np.float32)}


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {
        "f64": np.array([1.5]),
        "f16": np.array([[1.0, 2.0]], np.float16),
        "i64": np.array(3),
        "u8": np.zeros((0, 7), np.uint8),
        "flag": np.array([True, False]),
    }
    found = read_tensors(single(tmp_path / "a", tensors))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


ATTACKS: dict[str, tuple[Any, bytes, str]] = {
    "gap": ({"x": entry(0, 8), "y": entry(12, 20)}, bytes(20), "tensor 'y': leaves a gap"),
    "overlap": ({"x": entry(0, 8), "y": entry(4, 12)}, bytes(12), "tensor 'y': overlaps"),
    "same place": ({"x": entry(0, 8), "y": entry(0, 8)}, bytes(8), "overlaps"),
    "beyond the end": ({"x": entry(0, 16)}, bytes(8), "tensors end at"),
    "bytes left over": ({"x": entry(0, 8)}, bytes(12), "tensors end at"),
    "begins late": ({"x": entry(4, 12)}, bytes(12), "leaves a gap"),
    "wrong size": ({"x": entry(0, 8, [3])}, bytes(8), "cannot hold F32"),
    "overflowing shape": ({"x": entry(0, 8, [2**62, 2**62, 2])}, bytes(8), "cannot hold F32"),
    "product wraps to 0": ({"x": entry(0, 0, [2**32, 2**32])}, b"", "cannot hold F32"),
    "negative shape": ({"x": entry(0, 8, [-2, -1])}, bytes(8), "impossible"),
    "negative offset": ({"x": entry(-8, 0)}, bytes(8), "impossible"),
    "offsets reversed": ({"x": {"dtype": "F32", "shape": [], "data_offsets": [8, 4]}}, bytes(8), "impossible"),
    "huge offsets": ({"x": entry(0, 2**64, [2**62])}, bytes(8), "impossible"),
    "shape of booleans": ({"x": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, bytes(4), "impossible"),
    "fractional shape": ({"x": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, bytes(4), "impossible"),
    "unknown field": ({"x": {**entry(0, 4), "more": 1}}, bytes(4), "nothing else"),
    "not an entry": ({"x": [1]}, b"", "nothing else"),
    "float8": ({"x": entry(0, 4, [4], "F8_E4M3")}, bytes(4), "'F8_E4M3' is not supported"),
    "dtype that is a list": ({"x": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}, bytes(4), "not supported"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "__metadata__ must map text"),
    "duplicate tensor": (b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":1}', bytes(4), "'x' appears twice"),
    "duplicate field": (b'{"x":{"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]}}', bytes(4), "appears twice"),
    "NaN": (b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4), "not a JSON number"),
    "half a surrogate": (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4), "not valid JSON"),
    "half a surrogate in metadata": (b'{"__metadata__":{"a":"\\ud800"}}', b"", "surrogates not allowed"),
    "a million dimensions": ({"x": entry(0, 4, [2**62] * 1_000_000)}, bytes(4), "impossible"),
    "not JSON": (b'{"x":', b"", "not valid JSON"),
    "not UTF-8": (b'{"\xff":1}', b"", "not valid JSON"),
    "deep": (b'{"x":' + b"[" * 100_000, b"", "not valid JSON"),
    "list": ([], b"", "not a JSON object"),
    "leading space": (b' {"x":1}', b"", "not a JSON object"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_header_attacks(tmp_path: Path, attack: str) -> None:
    header, data, message = ATTACKS[attack]
    with pytest.raises(CheckpointError, match=r"model 'evil', file model\.safetensors") as caught:
        open_model(write_raw(tmp_path / "m", header, data), "evil")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 100_000_001, 1000])
def test_header_length_attacks(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointError, match="which is impossible"):
        open_model(write_raw(tmp_path / "m", {}, length=length))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_files_are_refused_or_read_as_the_library_reads_them(data: Any) -> None:
    content = bytearray(save({"x": np.ones((2, 3), np.float32), "y": np.zeros(4, np.int64)}, {"format": "pt"}))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["change", "remove", "insert"]))
        byte = data.draw(st.one_of(st.integers(0, 255), st.sampled_from(b'0123456789[]{},:"')))
        content[place : place + (kind != "insert")] = b"" if kind == "remove" else bytes([byte])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(content)
        try:
            found = read_tensors(Path(folder))
        except CheckpointError:
            return
    expected = load(bytes(content))  # stricter than the library, never laxer
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype and tensor.tobytes() == expected[name].tobytes()


def test_short_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="5 bytes are not a safetensors"):
        open_model(tmp_path)


def test_a_file_that_shrinks_while_read(tmp_path: Path) -> None:
    with open_model(single(tmp_path / "m", ONE)) as checkpoint:
        with (tmp_path / "m" / "model.safetensors").open("r+b") as file:
            file.truncate(30)
        with pytest.raises(CheckpointError, match="became shorter"):
            checkpoint.tensors["x"].load()


def test_sharded(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", ONE, {"y": np.zeros(2, np.float32)})
    assert set(read_tensors(folder)) == {"x", "y"}


@pytest.mark.parametrize("name", ["../out.safetensors", "/etc/passwd", "sub/out.safetensors", "..", "", "a\\b", "a\0b"])
def test_index_may_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    save_file(ONE, tmp_path / "out.safetensors")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointError, match="may not lead elsewhere"):
        open_model(tmp_path / "m")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "out.safetensors")
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "shard.safetensors").symlink_to(tmp_path / "out.safetensors")
    with pytest.raises(CheckpointError, match="a link out of the model's folder"):
        open_model(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "shard.safetensors"}}))
    with pytest.raises(CheckpointError, match="a link out of the model's folder"):
        open_model(folder)


@pytest.mark.parametrize(
    "index, message",
    [
        ({"weight_map": {"x": "gone.safetensors"}}, "gone.safetensors is missing"),
        ({"weight_map": {"z": "model-00001-of-00001.safetensors"}}, "tensor 'z' lies in"),
        ({"weight_map": {}}, "needs a weight_map"),
        ({"weight_map": {"x": 3}}, "needs a weight_map"),
        ([], "not a JSON object"),
    ],
)
def test_index_that_lies(tmp_path: Path, index: object, message: str) -> None:
    folder = sharded(tmp_path / "m", ONE)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        open_model(folder)


def test_index_that_is_silent_about_a_tensor(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {**ONE, "y": np.ones(1, np.float32)})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "model-00001-of-00001.safetensors"}}))
    with pytest.raises(CheckpointError, match="holds tensor 'y', which the index"):
        open_model(folder)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds tensor 'x', which the index"):
        open_model(sharded(tmp_path / "m", {**ONE, "y": np.ones(1, np.float32)}, ONE))


def test_folders_that_would_have_to_be_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        open_model(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no tensors in"):
        open_model(tmp_path / "empty")
    two = single(tmp_path / "two", ONE)
    save_file(ONE, two / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"which of model\.safetensors, other\.safetensors"):
        open_model(two)
    both = single(tmp_path / "both", ONE)
    (both / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"which of model\.safetensors, pytorch_model\.bin"):
        open_model(both)
    mixed = single(sharded(tmp_path / "mixed", ONE), ONE)
    with pytest.raises(CheckpointError, match=r"does not mention model\.safetensors"):
        open_model(mixed)
    tangled = single(adapter(tmp_path / "tangled", ONE), ONE)
    with pytest.raises(CheckpointError, match="an adapter's folder holds"):
        open_model(tangled)


def test_what_trainers_leave_behind_is_not_taken_for_the_model(tmp_path: Path) -> None:
    folder = single(tmp_path / "m", ONE)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "optimizer.bin"):
        (folder / name).write_bytes(b"anything")
    assert set(read_tensors(folder)) == {"x"}


def test_one_safetensors_file_of_any_name(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "weights.safetensors")
    assert set(read_tensors(tmp_path)) == {"x"}
