"""Fingerprints of data: what changes them, what they are compared with, and that no release carries one."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra.numpy import arrays

import dpmerge as library
from attacks.victim import forge
from dpmerge.errors import CertificateError, DataError, PortfolioError, RecordError, SignatureError, TrainingError
from dpmerge.files import canonical
from dpmerge.records import DataFingerprint, Model, Portfolio, Record, by_name_only
from dpmerge.release import Ledger, release, verify
from dpmerge.release.certificate import Certificate, record_digest
from dpmerge.training import (
    PortfolioFile,
    StatedModel,
    data_fingerprint,
    data_key_id,
    fingerprint_of,
    new_data_key,
    new_record,
    read_data_key,
    train_portfolio,
)
from dpmerge.training.origin import Kept
from tests import builders
from tests.checkpoint_builders import single
from tests.release_builders import RULES, chosen, dpmerge, on_disk

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])
PLAIN = data_fingerprint(ROWS, LABELS, key=KEY)
EXAMPLES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | arrays(st.sampled_from(["<f4", ">i8", "u1"]), st.tuples(st.integers(1, 3), st.integers(0, 2))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)


# --- what it is of ------------------------------------------------------------------------------------------------------------


def test_it_is_what_the_documentation_says() -> None:
    """Computed a second time, from the words of docs/records.md."""
    tag = b"dpmerge data 1, "

    def mac(data: bytes) -> bytes:
        return hmac.digest(KEY, data, hashlib.sha256)

    marks = [
        mac(tag + b"example\0" + b"l2:" + b"af4:4:" + struct.pack("<4f", *row) + b"i%d;" % label)
        for row, label in zip(ROWS.tolist(), LABELS.tolist(), strict=True)
    ]
    assert PLAIN.value == mac(tag + b"whole\0" + b"6:" + b"".join(sorted(marks))).hex()
    assert PLAIN.key == data_key_id(KEY) == mac(tag + b"key\0")[:16].hex()


@given(st.permutations(range(len(ROWS))))
def test_the_order_of_examples_does_not_matter(order: list[int]) -> None:
    assert data_fingerprint(ROWS[order], LABELS[order], key=KEY) == PLAIN


@given(st.lists(EXAMPLES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_examples_in_any_order(examples: list[Any], chance: Any) -> None:
    mixed = chance.sample(examples, len(examples))
    assert data_fingerprint(examples, key=KEY) == data_fingerprint(iter(mixed), key=KEY)


@given(st.integers(0, ROWS.nbytes - 1), st.integers(1, 255))
def test_one_changed_byte_changes_it(place: int, flip: int) -> None:
    changed = bytearray(ROWS.tobytes())
    changed[place] ^= flip
    rows = np.frombuffer(bytes(changed), dtype=np.float32).reshape(ROWS.shape)
    assert data_fingerprint(rows, LABELS, key=KEY).value != PLAIN.value


@given(st.integers(0, 5), st.integers(-3, 3))
def test_one_changed_label_changes_it(place: int, label: int) -> None:
    assume(label != LABELS[place])
    changed = LABELS.copy()
    changed[place] = label
    assert data_fingerprint(ROWS, changed, key=KEY).value != PLAIN.value


@given(st.integers(0, 5))
def test_one_example_more_less_or_twice_changes_it(place: int) -> None:
    fewer, twice = np.delete(np.arange(6), place), [*range(6), place]
    found = {data_fingerprint(ROWS[rows], LABELS[rows], key=KEY).value for rows in (fewer, twice)}
    again = data_fingerprint(ROWS[[*range(6), (place + 1) % 6]], LABELS[[*range(6), (place + 1) % 6]], key=KEY).value
    assert len({*found, again, PLAIN.value}) == 4, "which of them is there twice matters, too"


@given(EXAMPLES, EXAMPLES)
@settings(max_examples=300)
def test_different_examples_are_not_mistaken_for_each_other(one: Any, other: Any) -> None:
    """Nor two lists whose parts are the same when they are joined."""
    same = data_fingerprint([one], key=KEY) == data_fingerprint([other], key=KEY)
    assert same == (_plain(one) == _plain(other))
    assert data_fingerprint([[one, [other]]], key=KEY) != data_fingerprint([[[one], other]], key=KEY)


def _plain(value: Any) -> str:
    """A second notion of being the same, by words."""
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return _plain(value.item())
        little = value.astype(value.dtype.newbyteorder("<")).tobytes()
        return f"array {value.dtype.kind}{value.dtype.itemsize} {value.shape} {little!r}"
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_plain(value[name])}' for name in sorted(value))}}}"
    return f"{type(value).__name__} {value!r}"


def test_memory_order_and_byte_order_do_not_matter_and_types_do() -> None:
    assert data_fingerprint(np.asfortranarray(ROWS).astype(">f4"), LABELS.astype(np.uint8), key=KEY) == PLAIN
    assert data_fingerprint(ROWS.astype(np.float64), LABELS, key=KEY) != PLAIN
    assert data_fingerprint(ROWS.reshape(6, 2, 2), LABELS, key=KEY) != PLAIN


@given(st.binary(min_size=16, max_size=40), st.binary(min_size=16, max_size=40))
def test_under_another_key_nothing_is_the_same(one: bytes, other: bytes) -> None:
    assume(one.rstrip(b"\0") != other.rstrip(b"\0"))  # HMAC fills keys up with zeros
    first, second = (data_fingerprint(ROWS, LABELS, key=key) for key in (one, other))
    assert first.key != second.key and first.value != second.value
    assert hashlib.sha256(one).hexdigest() not in (first.key, first.value), "nothing without the key computes it"


def test_a_torch_dataset_is_its_examples() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    held = torch.utils.data.TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(LABELS))
    assert data_fingerprint(held, key=KEY) == PLAIN
    assert data_fingerprint(torch.from_numpy(ROWS), torch.from_numpy(LABELS), key=KEY) == PLAIN
    half = torch.utils.data.TensorDataset(torch.zeros(2, 3, dtype=torch.bfloat16))
    with pytest.raises(DataError, match=r"example 0 \(counted from 0\) cannot be fingerprinted"):
        data_fingerprint(half, key=KEY)


class Augmented:
    """A dataset that changes what it gives."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> float:
        self.reads += 1
        return self.reads + place


@pytest.mark.parametrize(
    ("data", "because"),
    [
        ((), "no data"),
        (([],), "no examples"),
        ((ROWS, LABELS[:3]), "arrays with 6, 3 rows"),
        (({"x": ROWS},), "a dict is no sequence of examples"),
        ((5,), "a int is no sequence"),
        (("text",), "a str is no sequence"),
        (([1, object()],), r"example 1 \(counted from 0\) cannot be fingerprinted: it holds a object"),
        (([{1: 2, "a": 3}],), "example 0 .* cannot be fingerprinted"),
        ((Augmented(),), "is another one each time it is read"),
        ((np.array(5),), "a ndarray has no rows that could be counted"),
        ((iter([1]), iter([2])), "a list_iterator has no rows that could be counted"),
        (([deque([1, "1"])],), "it holds a deque"),
        ((np.ma.masked_equal(ROWS, 3),), "it holds a MaskedArray"),
        ((np.ones((2, 2), np.longdouble),), "long double"),
    ],
)
def test_what_is_no_data_is_refused(data: tuple[Any, ...], because: str) -> None:
    with pytest.raises(DataError, match=because):
        data_fingerprint(*data, key=KEY)


def test_tables_and_loaders_are_no_sequences_of_examples() -> None:
    """A table with numbered columns would be read by columns, so that a changed row could stay unseen."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(ROWS[:2])
    for data in ((table,), (table[0],), (table[table[0] > 0][0], [1]), ([table.iloc[0]],)):
        with pytest.raises(DataError, match=r"a DataFrame is no sequence|a Series is no sequence|it holds a Series"):
            data_fingerprint(*data, key=KEY)
    assert data_fingerprint(pandas.DataFrame(ROWS).to_numpy(), LABELS, key=KEY) == PLAIN
    torch = pytest.importorskip("torch", reason="torch is not installed")
    held = torch.utils.data.TensorDataset(torch.from_numpy(ROWS))
    with pytest.raises(DataError, match="a DataLoader is no sequence of examples; give a Dataset"):
        data_fingerprint(torch.utils.data.DataLoader(held, batch_size=2, shuffle=True), key=KEY)


def test_an_image_is_its_numbers_where_they_say_all() -> None:
    images = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    colours = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert data_fingerprint([images.fromarray(colours)], key=KEY) == data_fingerprint([colours], key=KEY)
    for mode in ("P", "HSV"):
        with pytest.raises(DataError, match="images in grey, RGB or RGBA"):
            data_fingerprint([images.new(mode, (2, 2))], key=KEY)


# --- files and keys -----------------------------------------------------------------------------------------------------------


def test_files_of_arrays_are_their_training_part(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x_train=ROWS, y_train=LABELS, x_test=ROWS[:1], y_test=LABELS[:1])
    np.savez(tmp_path / "part.npz", x=ROWS, y=LABELS)
    np.save(tmp_path / "rows.npy", ROWS)
    assert fingerprint_of(tmp_path / "one.npz", KEY) == fingerprint_of(tmp_path / "part.npz", KEY) == PLAIN
    assert fingerprint_of(tmp_path / "rows.npy", KEY) == data_fingerprint(ROWS, key=KEY)


def test_every_file_of_a_folder_is_an_example(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name in ("cats/1.png", "cats/2.png", "dogs/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    found = fingerprint_of(folder, KEY)
    (folder / "cats" / "2.png").rename(folder / "dogs" / "2.png")
    moved = fingerprint_of(folder, KEY)
    (folder / "dogs" / "1.png").write_bytes(b"dogs/1.pnG")
    assert len({found.value, moved.value, fingerprint_of(folder, KEY).value}) == 3, "a folder may be the label"
    (folder / "link").symlink_to(folder / "dogs" / "1.png")
    with pytest.raises(DataError, match="is a link or no file"):
        fingerprint_of(folder, KEY)


def test_a_folder_that_may_not_be_listed_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "closed").mkdir(parents=True)
    (tmp_path / "data" / "1.png").write_bytes(b"1")
    listed = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match="closed: cannot be read: Permission denied"):
        fingerprint_of(tmp_path / "data", KEY)


def test_a_folder_that_may_only_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")

    def stat(path: Path, **_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    found = fingerprint_of(tmp_path / "a.csv", KEY)
    monkeypatch.setattr(Path, "stat", stat)
    assert fingerprint_of(tmp_path / "a.csv", KEY) == found
    with pytest.raises(DataError, match=r"a\.csv: cannot be read: Permission denied"):
        fingerprint_of(tmp_path, KEY)


def test_rows_of_a_table_by_column(tmp_path: Path) -> None:
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    one.write_text('age,name\n7,"a, b"\n8,"two\nlines"\n')
    other.write_text('\ufeffname,age\n"two\nlines",8\n"a, b",7\n')
    assert fingerprint_of(one, KEY) == fingerprint_of(other, KEY)
    other.write_text('age,name\n7,"a, b"\n8,"two\nlines"\n8,"two\nlines"\n')
    assert fingerprint_of(one, KEY) != fingerprint_of(other, KEY)


@pytest.mark.parametrize(
    ("name", "content", "because"),
    [
        ("a.csv", "x,x\n1,2\n", "must name the columns, each once"),
        ("a.csv", "x,y\n1\n", "line 2 has 1 fields; there are 2 columns"),
        ("a.csv", "x\n", "no examples"),
        ("a.csv", 'x\n"1\n', "cannot be read"),
        ("a.txt", "x", "data are a folder of files, a .csv file, or arrays"),
        ("a.npz", "x", "not an .npz file"),
        (None, "", "no such file"),
    ],
)
def test_files_that_cannot_be_read_are_named(name: str | None, content: str, because: str, tmp_path: Path) -> None:
    if name is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=because):
        fingerprint_of(tmp_path / (name or "gone.csv"), KEY)


def test_a_key_is_secret_fresh_and_long(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert new_data_key(path) == data_key_id(read_data_key(path)) != new_data_key(tmp_path / "another")
    assert len(read_data_key(path)) == 32 and path.stat().st_mode & 0o077 == 0
    with pytest.raises(SignatureError, match="never overwritten"):
        new_data_key(path)
    for content, because in (("zz", "holds no key"), ("00" * 15, "a key of 15 bytes can be guessed")):
        (tmp_path / "bad").write_text(content)
        with pytest.raises(SignatureError, match=because):
            read_data_key(tmp_path / "bad")
    with pytest.raises(SignatureError, match="holds no key"):
        read_data_key(tmp_path / "gone")
    with pytest.raises(SignatureError, match="can be guessed"):
        data_fingerprint(ROWS, key=b"short")


# --- compared within portfolios and ledgers -----------------------------------------------------------------------------------

OTHER = DataFingerprint(key=PLAIN.key, value="0" * 64)
ELSEWHERE = data_fingerprint(ROWS, LABELS, key=OTHER_KEY)


def of(model: Model, found: DataFingerprint | None) -> Model:
    return replace(model, record=model.record.model_copy(update={"data_fingerprint": found}))


def run(name: str, found: DataFingerprint | None, **mechanism: Any) -> Model:
    return of(builders.dp_sgd(name, sigma=4.0, steps=10, **mechanism), found)


def part(name: str, number: int, found: DataFingerprint | None, partition: str = "p") -> Model:
    shard = {"partition": partition, "part": number, "of": 3, "assignment": "fair-draw"}
    return run(name, found, sampling=0.1, shard=shard)


def test_a_record_keeps_it_and_older_records_stay_as_they_were() -> None:
    found = run("a", PLAIN).record
    assert Record.parse(found.model_dump_json(by_alias=True)) == found
    assert found.as_dict()["data_fingerprint"] == {"key": PLAIN.key, "value": PLAIN.value}
    assert "data_fingerprint" not in run("a", None).record.as_dict()
    for broken in ({"key": PLAIN.key}, {**PLAIN.model_dump(), "value": "0"}, {**PLAIN.model_dump(), "salt": "0"}):
        with pytest.raises(RecordError, match="data_fingerprint"):
            Record.parse(json.dumps({**found.as_dict(), "data_fingerprint": broken}))


def test_models_of_other_data_under_one_name_are_refused() -> None:
    with pytest.raises(PortfolioError, match="'a' and 'c': their records name one dataset, 'test-data', but the fingerprints"):
        Portfolio([run("a", PLAIN), run("b", None), run("c", OTHER)])
    assert Portfolio([run("a", PLAIN), run("b", PLAIN), run("c", None), run("d", ELSEWHERE)]).names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("models", "because"),
    [
        ([run("a", PLAIN), run("b", PLAIN)], None),
        ([run("a", None)], None),
        ([part("a", 1, PLAIN), part("b", 1, PLAIN)], None),
        ([run("a", PLAIN), run("b", None), run("c", None)], "no fingerprint of the data in the records of 'b', 'c'"),
        ([run("a", PLAIN), run("b", ELSEWHERE)], "under different keys"),
        ([part("a", 1, PLAIN), part("b", 2, OTHER)], "each part of the data has a fingerprint of its own"),
    ],
)
def test_what_is_known_by_name_only_is_said(models: list[Model], because: str | None) -> None:
    said = by_name_only(Portfolio(models))
    assert said is None if because is None else said is not None and "by its name only" in said and because in said


def test_parts_of_the_data_have_fingerprints_of_their_own() -> None:
    """One part is one set of records; another part of the partition, or all of the data, is another."""
    Portfolio([part("a", 1, PLAIN), part("b", 2, OTHER), part("c", 1, PLAIN), part("d", 1, PLAIN, "another")])
    with pytest.raises(PortfolioError, match="part 1 of its partition 'p', but the fingerprints of their data differ"):
        Portfolio([part("a", 1, PLAIN), part("c", 1, OTHER)])
    for other in (part("b", 2, PLAIN), run("b", PLAIN)):
        with pytest.raises(PortfolioError, match="different parts of the data, but the fingerprints of these are equal"):
            Portfolio([part("a", 1, PLAIN), other])


def test_a_start_is_on_the_same_data(tmp_path: Path) -> None:
    on_disk(tmp_path, run("body", PLAIN))
    kept = Kept.read(tmp_path / "body")
    for fine in (None, PLAIN, ELSEWHERE):
        assert kept.start_on(builders.DATASET, fine).step == 10
    with pytest.raises(TrainingError, match="whose data have another fingerprint"):
        kept.start_on(builders.DATASET, OTHER)
    shard = part("x", 1, None).mechanism.shard
    assert kept.start_on(builders.DATASET, OTHER, shard).step == 10, "a part has a fingerprint of its own"
    fork = run("fork", PLAIN, starts_from=kept.start_on(builders.DATASET, PLAIN).model_dump(mode="json"))
    assert fork.start is not None and fork.start.record.data_fingerprint is None, "of what the fork's own steps saw"


# --- what a release carries ---------------------------------------------------------------------------------------------------


def fingerprinted(folder: Path, *found: DataFingerprint | None) -> Portfolio:
    noise = {"a": 4.0, "b": 40.0, "c": 10.0}
    models = (builders.dp_sgd(name, sigma=sigma, steps=10, smoothness=0.2) for name, sigma in noise.items())
    return on_disk(folder / "runs", *(of(model, one) for model, one in zip(models, found, strict=True)))


def holds(folder: Path) -> list[str]:
    marks = [text.encode() for one in (PLAIN, ELSEWHERE) for text in (one.key, one.value, one.value[:16])]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        str(path) for path in files if b"data_fingerprint" in path.read_bytes() or any(m in path.read_bytes() for m in marks)
    ]


@pytest.mark.parametrize("rule", RULES)
def test_a_release_does_not_carry_it(rule: Any, tmp_path: Path) -> None:
    portfolio = fingerprinted(tmp_path, PLAIN, PLAIN, ELSEWHERE)
    made = release(portfolio, chosen(portfolio, rule), tmp_path / "out")
    assert not holds(tmp_path / "out") and ((tmp_path / "out" / "record.json").exists() or rule == "combination")
    assert holds(tmp_path / "runs"), "where it is, it is found"
    assert verify(tmp_path / "out", portfolio=portfolio, strict=True).code == 0
    assert made.guarantee == release(portfolio, chosen(portfolio, rule), tmp_path / "again").guarantee


def test_a_certificate_with_one_is_refused(tmp_path: Path) -> None:
    portfolio = fingerprinted(tmp_path, PLAIN, PLAIN, PLAIN)
    made = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out").certificate

    def put_in(content: Any) -> None:
        content["records"]["a"]["record"]["data_fingerprint"] = PLAIN.model_dump()

    content = json.loads(made.file())
    put_in(content)
    with pytest.raises(CertificateError, match="a fingerprint of the data, which it does not cover"):
        Certificate.parse(canonical(content), "forged")
    forge(tmp_path / "out", put_in)
    assert verify(tmp_path / "out").code != 0


def test_a_record_is_of_the_same_run_with_it_and_without(tmp_path: Path) -> None:
    portfolio = fingerprinted(tmp_path, PLAIN, PLAIN, PLAIN)
    release(portfolio, chosen(portfolio, "joint"), tmp_path / "out")
    plain = fingerprinted(tmp_path, None, None, None)
    assert [record_digest(m.record) for m in plain] == [record_digest(m.record) for m in portfolio]
    assert verify(tmp_path / "out", portfolio=plain).code == 0
    ones = [library.joint(p, {"a": 0.5, "b": 0.5}).guarantee(delta=1e-5) for p in (plain, portfolio)]
    assert ones[0] == ones[1], "no guarantee depends on it"


def test_a_merge_says_where_data_are_known_by_name_only(tmp_path: Path) -> None:
    for found, said in (((PLAIN, PLAIN, None), 0), ((PLAIN, None, None), 1), ((None, None, None), 0)):
        portfolio = fingerprinted(tmp_path, *found)
        made = release(portfolio, chosen(portfolio, "selection"), tmp_path / f"out-{len(list(tmp_path.iterdir()))}")
        assert sum("known by its name only" in note for note in made.notes) == said


def test_a_ledger_refuses_other_data_under_its_name(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50.0, delta=1e-4)
    first = fingerprinted(tmp_path / "1", PLAIN, PLAIN, PLAIN)
    release(first, chosen(first, "joint"), tmp_path / "out-1", ledger=ledger)
    other = on_disk(tmp_path / "2" / "runs", *(run(name, OTHER, run=f"second-{name}", noise_fingerprint=None) for name in "ab"))
    with pytest.raises(PortfolioError, match="the fingerprints of their data differ"):
        release(other, chosen(other, "joint"), tmp_path / "out-2", ledger=ledger)
    again = fingerprinted(tmp_path / "3", None, None, None)
    before = ledger.summary(ledger.history())["spent"]["epsilon"]
    release(again, chosen(again, "joint"), tmp_path / "out-3", ledger=ledger)
    after = ledger.summary(ledger.history())["spent"]["epsilon"]
    assert after == pytest.approx(before, rel=1e-9), "the same runs, whose records once had fingerprints"


def test_a_ledger_compares_fingerprints_that_records_get_later(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50.0, delta=1e-4)
    for number, found in enumerate((None, PLAIN)):
        portfolio = fingerprinted(tmp_path / str(number), found, found, found)
        release(portfolio, chosen(portfolio, "joint"), tmp_path / f"out-{number}", ledger=ledger)
    same = fingerprinted(tmp_path / "same", OTHER, OTHER, OTHER)
    strangers = (run(name, OTHER, run=f"second-{name}", noise_fingerprint=None) for name in "ab")
    others = on_disk(tmp_path / "2" / "runs", *strangers)
    for portfolio in (same, others):
        with pytest.raises(PortfolioError, match="the fingerprints of their data differ"):
            release(portfolio, chosen(portfolio, "joint"), tmp_path / "refused", ledger=ledger)


# --- how it gets into records -------------------------------------------------------------------------------------------------


def test_the_commands(tmp_path: Path) -> None:
    key, out, folder = tmp_path / "key", tmp_path / "print.json", single(tmp_path / "runs" / "a", {"w": np.ones(3, np.float32)})
    np.savez(tmp_path / "data.npz", x=ROWS, y=LABELS)
    made = json.loads(dpmerge("record", "key", key, "--json").stdout)
    told = json.loads(dpmerge("record", "fingerprint", tmp_path / "data.npz", "--key", key, "--out", out, "--json").stdout)
    assert told == json.loads(out.read_text()) and made["key"] == told["key"]
    words = ("--kind", "non-private", "--dataset", "d", "--adjacency", "add-remove", "--data-fingerprint", out)
    assert dpmerge("record", "new", folder, *words).exit_code == 0
    found = Record.load(folder / "record.json").data_fingerprint
    assert found == data_fingerprint(ROWS, LABELS, key=read_data_key(key))
    assert isinstance(
        dpmerge("record", "fingerprint", tmp_path / "data.npz", "--key", key, "--out", out).exception, RecordError
    )
    key.write_text("no")
    assert isinstance(dpmerge("record", "fingerprint", tmp_path / "data.npz", "--key", key).exception, SignatureError)
    (folder / "record.json").unlink()
    out.write_text("{}")
    assert isinstance(dpmerge("record", "new", folder, *words).exception, RecordError)


@pytest.mark.parametrize("kind", ["dp-sgd", "approx-dp"])
def test_it_can_be_stated(kind: Any, tmp_path: Path) -> None:
    from tests.test_record_new import PAIR, SGD

    stated = StatedModel(**{**(SGD if kind == "dp-sgd" else PAIR), "data_fingerprint": PLAIN})
    folder = single(tmp_path / "a", {"w": np.ones(3, np.float32)})
    assert new_record(folder, stated).data_fingerprint == Record.load(folder / "record.json").data_fingerprint == PLAIN


def trained(folder: Path, **fields: Any) -> Callable[..., Portfolio]:
    np.savez(folder / "data.npz", x_train=ROWS, y_train=LABELS, x_test=ROWS, y_test=LABELS)
    common = {"model": "softmax", "learning_rate": 0.1, "rate": 0.5, "steps": 2, "clip": 1.0, "noise_multiplier": 1.0}
    given = {"data": "data.npz", "dataset": "d", "classes": 3, "norm_bound": 3.0, "defaults": common, **fields}

    def train(out: str, key: bytes | None = KEY) -> Portfolio:
        (folder / "runs.yaml").write_text(yaml.safe_dump(given))
        train_portfolio(PortfolioFile.load(folder / "runs.yaml"), folder / out, jobs=1, data_key=key)
        return Portfolio(folder / out)

    return train


def test_training_fingerprints_what_is_in_the_files(tmp_path: Path) -> None:
    """However it is prepared: a file is the same data as on the command line, and in Python."""
    train = trained(tmp_path, normalise={"mean": [1.0] * 4, "deviation": [2.0] * 4}, runs={"a": None, "b": {"from": "a"}})
    assert {model.record.data_fingerprint for model in train("one")} == {PLAIN}
    assert {model.record.data_fingerprint for model in train("plain", None)} == {None}


def test_training_fingerprints_parts_apart(tmp_path: Path) -> None:
    many = np.arange(400, dtype=np.float32).reshape(100, 4)
    train = trained(tmp_path, runs={"a": {"shards": 2}, "b": {"shards": 2}, "c": None})
    np.savez(tmp_path / "data.npz", x_train=many, y_train=np.arange(100) % 3, x_test=ROWS, y_test=LABELS)
    found = {model.name: model.record.data_fingerprint for model in train("out")}
    assert found["a.1"] == found["b.1"] and found["a.2"] == found["b.2"]
    assert len(set(found.values())) == 3 and found["c"] == data_fingerprint(many, np.arange(100) % 3, key=KEY)
