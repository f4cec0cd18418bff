"""What the fuzzer starts from, files by the project's own writers, and how it changes them (`tests/fuzz.py`)."""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dpmerge.records import Portfolio
from dpmerge.release import choose, release
from dpmerge.release.signing import new_keys
from dpmerge.training.data_fingerprint import new_data_key
from tests import checkpoint_builders, ledger_builders
from tests.release_builders import chosen, runs

_ALIASED = b"""data: x.npz
classes: 2
dataset: d
norm_bound: 2.0
runs:
  a: &a {model: logistic, steps: 3, learning_rate: 0.1, noise_multiplier: 1, clip: 1, full_batch: true}
  b: {<<: *a, noise_multiplier: 2}
"""
Corpus = dict[str, list[bytes]]  # by reader
_HUGE = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1]
_EXTREME: list[Any] = [None, True, 0, -1, 1e308, 5e-324, -0.0, 2**53, 10**18, 10**400, "", "\x00", "\ud800", "1", "NaN", [], {}]
_EXTREME += [[[]], "x" * 3000, [0] * 300, {"": None}, "../../etc/passwd", "a\nb\x1b[2K", float("nan"), float("inf"), -1e400]
_TEXTS = [
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"{",
    b"[" * 2000,
    b"}",
    b'"',
    b"\\ud800",
    b"NaN",
    b"1e999",
    b"9" * 400,
    b"---\n",
]
_TEXTS += [
    b"&a [*a]",
    b"<<: *a",
    b"!!python/object:os.system",
    b"<!--",
    b"-->",
    b"<a ",
    b"'",
    b"\n" * 50,
    b"PK\x05\x06",
    b"\x80\x05",
]


def corpus(folder: Path) -> Corpus:
    """Valid inputs for every reader."""
    portfolio = runs(folder)
    out = release(portfolio, chosen(portfolio, "joint"), folder / "out").folder
    model = folder / "runs" / "a"
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 4)).astype(np.float32)
    lora = checkpoint_builders.adapter(
        folder / "lora", {"l.lora_A.weight": values[:2], "l.lora_B.weight": values[:, :2].copy()}
    )
    shards = checkpoint_builders.sharded(folder / "sharded", {"x": values}, {"y": values})
    new_keys(folder / "key.pem")
    new_data_key(folder / "data.key")
    small = ledger_builders.written(folder / "small")
    ledger = ledger_builders.new(folder / "ledger.db", epsilon=30.0)
    weights = small.weights({small.names[0]: 0.5, small.names[1]: 0.5})
    release(small, choose(small, "selection", delta=1e-5, weights=weights), folder / "entered", ledger=ledger)
    labels = np.arange(6) % 2
    for save, name in ((np.savez, "a.npz"), (np.savez_compressed, "b.npz")):
        save(folder / name, x_train=rng.normal(size=(6, 2)), y_train=labels, x_test=rng.normal(size=(6, 2)), y_test=labels)
    np.save(folder / "a.npy", values)
    file = {"data": "sklearn-digits", "norm_bound": 2.0, "defaults": {"model": "softmax", "steps": 5, "learning_rate": 0.1}}
    file |= {
        "runs": {"a": {"noise_multiplier": 1.0, "clip": 1.0, "batch": 10}, "b": {"noise_multiplier": 2, "clip": 1, "rate": 0.1}}
    }
    head = {"model_type": "dpmerge-linear", "loss": "softmax", "norm_bound": 2.0, "mean": [0.5], "deviation": [1.0]}
    card = (out / "README.md").read_bytes()
    return {
        "record": [(folder / "runs" / name / "record.json").read_bytes() for name in "ab"] + _records(small),
        "safetensors": [(model / "model.safetensors").read_bytes(), (lora / "adapter_model.safetensors").read_bytes()],
        "shards": [(shards / "model.safetensors.index.json").read_bytes()],
        "adapter": [(lora / "adapter_config.json").read_bytes()],
        "torch": _torch_files(),
        "companion": [(model / "config.json").read_bytes(), json.dumps({"vocab": {"a": 1}, "model_type": "bert"}).encode()],
        "head": [json.dumps(head).encode()],
        "certificate": [(out / "certificate.json").read_bytes()],
        "card": [card, card.replace(b"<!-- dpmerge:certified begin -->", b"<b>\n<!-- dpmerge:certified begin -->")],
        "template": [b"---\nlicense: mit\ntags: [a, b]\n---\n\n# A model\n\n<!-- dpmerge:certified -->\n\nmore\n"],
        "portfolio file": [yaml.safe_dump(file).encode(), _ALIASED],
        "npz": [(folder / "a.npz").read_bytes(), (folder / "b.npz").read_bytes()],
        "npy": [(folder / "a.npy").read_bytes()],
        "csv": [b"id,x,label\n1,0.5,a\n2,0.25,b\n", b'"a b",c\n"1 ""2""",3\n'],
        "ledger": [(folder / "ledger.db").read_bytes()],
        "private key": [(folder / "key.pem").read_bytes()],
        "public key": [(folder / "key.pem.pub").read_bytes() if (folder / "key.pem.pub").exists() else b""],
        "data key": [(folder / "data.key").read_bytes()],
        "request": [
            b'{"rule":"joint","weights":{"a":0.5,"b":0.5},"delta":1e-5}',
            b'{"epsilon":1.0,"delta":1e-5,"effort":"full"}',
        ],
        "finished work": [b'{"key":"a","result":[1,2],"sum":"x"}\n'],
        "weights": [b"a=0.2,b=0.8", b"a=1/3,b=2/3"],
    }


def _records(portfolio: Portfolio) -> list[bytes]:
    return [model.record.model_dump_json(by_alias=True).encode() for model in portfolio.models]


def _torch_files() -> list[bytes]:
    """Both formats of torch.save; none where torch is not installed."""
    try:
        import torch
    except ImportError:
        return []
    base = torch.arange(12.0)
    state = {"a": base.reshape(3, 4).T, "b": base[2:5], "c": torch.nn.Parameter(base.half()), "n": torch.tensor(3)}
    opacus = {"module_state_dict": state, "privacy_accountant_state_dict": {"history": [(1.0, 0.1, 3)], "mechanism": "rdp"}}
    found = []
    for content in (state, opacus):
        for zipped in (True, False):
            out = io.BytesIO()
            torch.save(content, out, _use_new_zipfile_serialization=zipped)
            found.append(out.getvalue())
    return found


# --- the most memory for a byte ----------------------------------------------------------------------------------------------

_SIZE, _OF_YAML = 4 << 20, 1 << 19


def dense() -> dict[str, list[bytes]]:
    """Inputs of which every byte costs as much memory as can be, by reader."""
    lists, objects = _repeated(b'{"a":[', b"[],", b"[]]}"), _repeated(b'{"a":[', b"{},", b"{}]}")
    tensors = ",".join(f'"{n:x}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(_SIZE // 54))
    nested = _repeated(b"a: [", b"[],", b"]", _OF_YAML)
    return {
        "record": [lists, objects, _repeated(b"", b'{"a":0,', b"")],
        "certificate": [lists, objects],
        "companion": [objects],
        "shards": [_repeated(b'{"weight_map":{"a":"b"},"x":[', b"{},", b"{}]}")],
        "safetensors": [_with_length(f"{{{tensors}}}".encode()), _with_length(objects)],
        "torch": [
            _pickled(_repeated(b"\x80\x02", one, b".")) for one in (b"}", b"(", b"]q\x00", b"ccollections\nOrderedDict\n)R")
        ],
        "portfolio file": [nested],
        "template": [b"---\n" + nested + b"\n---\n\n<!-- dpmerge:certified -->\n"],
        "card": [b"```\n" * (_SIZE // 4), b"\n" * _SIZE, b"<a a" * (_SIZE // 4)],
        "finished work": [lists],
        "weights": [b"a=1," * (_SIZE // 4)],
        "private key": [b"-----BEGIN PRIVATE KEY-----\n" + b"A" * _SIZE + b"\n-----END PRIVATE KEY-----\n"],
    }


def _repeated(head: bytes, unit: bytes, tail: bytes, size: int = _SIZE) -> bytes:
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def _with_length(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def _pickled(program: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a/data.pkl", program)
    return out.getvalue()


# --- changes -----------------------------------------------------------------------------------------------------------------


def changed(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """The content after one to three changes; `other` lends pieces."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        change = draw.choice([_json, _json, _inside, _bytes, _bytes, _number, _digits, _text])
        content = change(content, other, draw)
    return content[: 1 << 20]


def _bytes(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """Bits flipped, pieces cut, doubled, moved or lent."""
    held, at = bytearray(content), draw.randrange(len(content) + 1)
    length = draw.choice([1, 2, 4, 8, 64, 1000])
    kind = draw.randrange(6)
    if kind == 0:
        for _ in range(draw.choice([1, 1, 8])):
            if held:
                held[draw.randrange(len(held))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del held[at:]
    elif kind == 2:
        del held[at : at + length]
    elif kind == 3:
        held[at:at] = held[at : at + length] * draw.choice([1, 2, 50])
    elif kind == 4:
        start = draw.randrange(len(other) + 1)
        held[at : at + draw.choice([0, length])] = other[start : start + length]
    else:
        held[at : at + length] = draw.randbytes(length)
    return bytes(held)


def _number(content: bytes, _: bytes, draw: random.Random) -> bytes:
    """A length or an offset that lies, often beside a mark of a zip file's directory."""
    held = bytearray(content)
    marks = [found.start() for found in re.finditer(rb"PK\x01\x02|PK\x05\x06|PK\x03\x04|SQLite", content)]
    at = draw.choice(marks) + draw.randrange(48) if marks and draw.random() < 0.7 else draw.randrange(len(held) + 1)
    size = draw.choice([1, 2, 4, 8])
    held[at : at + size] = (draw.choice(_HUGE) % 256**size).to_bytes(size, draw.choice(["little", "big"]))
    return bytes(held)


def _digits(content: bytes, _: bytes, draw: random.Random) -> bytes:
    """A number in a text: a shape, a step, a version."""
    places = [found.span() for found in re.finditer(rb"\d[\d.e+-]*", content)]
    if not places:
        return content
    first, end = draw.choice(places)
    new = draw.choice(
        [b"0", b"-1", b"1e400", b"1e-400", b"9" * 19, b"9" * 400, b"9" * 5000, b"NaN", b"0x10", b"1_0", b"\xd9\xa1"]
    )
    return content[:first] + new + content[end:]


def _text(content: bytes, _: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.choice(_TEXTS) * draw.choice([1, 1, 3]) + content[at:]


def _json(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """A value replaced, a key twice, more depth; the header of a safetensors file with its length."""
    try:
        length = int.from_bytes(content[:8], "little")
        if 0 < length < len(content) and content[8:9] == b"{":
            header = _json(content[8 : 8 + length], other, draw)
            return len(header).to_bytes(8, "little") + header + content[8 + length :]
        value = json.loads(content)
    except (ValueError, RecursionError):
        return _bytes(content, other, draw)
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        inside = list(one.items()) if isinstance(one, dict) else list(enumerate(one)) if isinstance(one, list) else []
        places += [(one, key) for key, _ in inside]
        waiting += [inner for _, inner in inside]
    if not places:
        return content
    home, key = draw.choice(places)
    kind = draw.randrange(5)
    if kind <= 2:
        home[key] = draw.choice(_EXTREME)
    elif kind == 3 and isinstance(home, dict):
        home[draw.choice(["", "x" * 500, "\ud800", "__proto__", str(key).upper(), "\x1b[2K"])] = home.pop(key)
    else:
        for _ in range(draw.choice([2, 200])):
            home[key] = [home[key]]
    text = json.dumps(value)
    if kind == 4 and isinstance(home, dict):
        text = text.replace(json.dumps(key) + ":", f"{json.dumps(key)}: 1, {json.dumps(key)}:", 1)
    return text.encode()


def _inside(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """A member of a zip file changed, with the checksum that fits; sometimes compressed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {one.filename: archive.read(one) for one in archive.infolist()[:50] if one.file_size < 1 << 20}
    except Exception:  # changed before
        return _text(content, other, draw)
    if not members:
        return content
    chosen_name = draw.choice(sorted(members))
    change = draw.choice([_bytes, _number, _digits, _text])
    members[chosen_name] = change(members[chosen_name], other, draw)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as made:
        for name, held in members.items():
            made.writestr(zipfile.ZipInfo(name), held, compress_type=made.compression)
    return out.getvalue()
