"""User-keyed text in StackOverflow's layout, made small by the test: ids, users, refusals, and training on it end to end."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import DataError
from dpmerge.records import Portfolio
from dpmerge_lab.tasks.user_text import UserText, Vocabulary

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

WORDS = ["how", "do", "i", "sort", "a", "list", "you", "can", "use", "sorted", "."]
SENTENCES = {
    "1001": [("how do i sort a list", "question"), ("you can use sorted .", "answer"), ("use timsort .", "answer")],
    "200": [("how can i use a list", "question")],
    "30": [(" ".join(["sort"] * 19), "answer"), (" ".join(["sort"] * 20), "answer"), (" ".join(["sort"] * 40), "answer")],
}


def write_text(path: Path, sentences: dict[str, list[tuple[str, str]]]) -> Path:
    """A file as TensorFlow Federated publishes it: variable-length strings, one dataset for each field of each user."""
    text = h5py.special_dtype(vlen=bytes)
    with h5py.File(path, "w") as file:
        for user, said in sentences.items():
            group = file.create_group(f"examples/{user}")
            count = len(said)
            for field, values in (
                ("tokens", [tokens.encode() for tokens, _ in said]),
                ("type", [kind.encode() for _, kind in said]),
                ("title", [b"sorting"] * count),
                ("tags", [b"python|sorting"] * count),
                ("creation_date", [b"2010-01-08 09:34:05 UTC"] * count),
            ):
                group.create_dataset(field, data=np.array(values, dtype=object), dtype=text, shape=(count,))
            group.create_dataset("score", data=np.ones(count, dtype=np.int64))
    return path


def write_counts(path: Path, words: list[str]) -> Path:
    path.write_text("".join(f"{word}\t{1000 - place}\n" for place, word in enumerate(words)))
    return path


@pytest.fixture
def text(tmp_path: Path) -> UserText:
    vocabulary = Vocabulary.load(write_counts(tmp_path / "stackoverflow.word_count", WORDS), size=10)
    return UserText.load(write_text(tmp_path / "stackoverflow_train.h5", SENTENCES), vocabulary)


def test_ids_are_tensorflow_federateds(text: UserText) -> None:
    vocabulary = text.vocabulary
    assert (vocabulary.size, vocabulary.unknown, vocabulary.begin, vocabulary.end) == (14, 11, 12, 13)
    assert vocabulary.encode(b"how do i timsort .", 6) == [12, 1, 2, 3, 11, 11, 13]  # "." is the eleventh word, of ten
    assert vocabulary.encode(b"how do", 4) == [12, 1, 2, 13, 0]
    assert vocabulary.encode(b"how do i sort", 4) == [12, 1, 2, 3, 4]  # no room for the end
    assert vocabulary.encode(b"how do i sort a list", 4) == [12, 1, 2, 3, 4]
    assert vocabulary.encode(b"how  do", 4) == [12, 1, 11, 2, 13]  # two spaces have a word of no letters between them
    assert vocabulary.encode(b"", 3) == [12, 11, 13, 0]
    full = Vocabulary(tuple(b"%d" % number for number in range(10_000)))
    assert (full.size, full.unknown, full.begin, full.end) == (10_004, 10_001, 10_002, 10_003)


def test_users_and_their_sentences(text: UserText) -> None:
    assert text.users == ("1001", "200", "30") and len(text) == 3
    inputs, targets = text.examples(0)
    assert inputs.shape == targets.shape == (3, 20) and inputs.dtype == np.int64
    assert inputs[0, :8].tolist() == [12, 1, 2, 3, 4, 5, 6, 13] and targets[0, :8].tolist() == [1, 2, 3, 4, 5, 6, 13, 0]
    nineteen, twenty, forty = text.examples(2)[1]
    assert nineteen.tolist() == [4] * 19 + [13] and twenty.tolist() == forty.tolist() == [4] * 20
    everyone = text.all_examples()
    assert [part.shape for part in everyone] == [(7, 20), (7, 20)]


def test_few_sentences_and_one_kind(text: UserText) -> None:
    few = UserText.load(text.path, text.vocabulary, length=5, most=2)
    assert [part.shape for part in few.examples(0)] == [(2, 5), (2, 5)]
    questions, answers = text.only("question"), text.only("answer")
    assert [len(questions.examples(user)[0]) for user in range(3)] == [1, 1, 0]
    assert [len(answers.examples(user)[0]) for user in range(3)] == [2, 0, 3]
    assert questions.users == answers.users == text.users
    one = UserText.load(text.path, text.vocabulary, most=1, kind="answer")
    assert one.examples(0)[1][:, :5].tolist() == [[7, 8, 9, 10, 11]]


def test_users_are_split_by_their_ids_alone(tmp_path: Path, text: UserText) -> None:
    many = {str(user): [("how", "question")] for user in range(40)}
    everyone = UserText.load(write_text(tmp_path / "many.h5", many), text.vocabulary)
    some, others = everyone.split(10)
    assert len(some) == 10 and len(others) == 30 and sorted(some.users + others.users) == list(everyone.users)
    changed = UserText.load(write_text(tmp_path / "other.h5", {u: [("sort", "answer")] * 3 for u in many}), text.vocabulary)
    assert changed.split(10)[0].users == some.users
    for count in (0, 40):
        with pytest.raises(DataError, match="some must be left on either side"):
            everyone.split(count)


def test_files_that_are_not_so_are_refused_in_one_line(tmp_path: Path, text: UserText, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(message: str, path: Path) -> None:
        with pytest.raises(DataError, match=re.escape(message)) as caught:
            UserText.load(path, text.vocabulary).examples(0)
        assert "\n" not in str(caught.value)

    refused("cannot be read as an HDF5 file", tmp_path / "missing.h5")
    (tmp_path / "text.h5").write_text("no such thing")
    refused("cannot be read as an HDF5 file", tmp_path / "text.h5")
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_dataset("examples", data=[1])
    refused("there is no group examples/", tmp_path / "empty.h5")
    with h5py.File(tmp_path / "nobody.h5", "w") as file:
        file.create_group("examples")
    refused("there are no users", tmp_path / "nobody.h5")
    with h5py.File(tmp_path / "silent.h5", "w") as file:
        file.create_group("examples/7").create_dataset("title", data=[b"x"])
    refused("the examples of user '7' cannot be read", tmp_path / "silent.h5")
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file.create_group("examples").create_dataset("7", data=[1.0])
    refused("the examples of user '7' cannot be read", tmp_path / "flat.h5")
    with h5py.File(tmp_path / "numbers.h5", "w") as file:
        file.create_group("examples/7").create_dataset("tokens", data=[1, 2])
    refused("the tokens of user '7' are no text", tmp_path / "numbers.h5")
    with h5py.File(tmp_path / "uneven.h5", "w") as file:
        group = file.create_group("examples/7")
        group.create_dataset("tokens", data=[b"a", b"b"])
        group.create_dataset("type", data=[b"answer"])
    with pytest.raises(DataError, match="the examples of user '7' cannot be read"):
        UserText.load(tmp_path / "uneven.h5", text.vocabulary, kind="answer").examples(0)
    for wrong in ({"length": 0}, {"most": 0}, {"kind": "comment"}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            UserText.load(text.path, text.vocabulary, **wrong)
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused("install dpmerge[text]", text.path)


def test_vocabularies_that_are_not_so_are_refused(tmp_path: Path) -> None:
    counts = write_counts(tmp_path / "counts", WORDS)
    assert Vocabulary.load(counts, 11).words[-1] == b"."
    for path, size, message in (
        (counts, 12, "12 words was asked for; the file has 11"),
        (counts, 0, "0 words was asked for"),
        (tmp_path / "none", 5, "none: cannot be read: No such file or directory"),
        (tmp_path, 5, "cannot be read"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            Vocabulary.load(path, size)
    (tmp_path / "bad").write_text("how 3\ndo\n")
    with pytest.raises(DataError, match="line 2: must be a word and its count"):
        Vocabulary.load(tmp_path / "bad", 2)
    (tmp_path / "twice").write_text("how 3\nhow 2\n")
    with pytest.raises(DataError, match="each once"):
        Vocabulary.load(tmp_path / "twice", 2)


# --- end to end ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks on more threads wait for each other, most of all where cores are busy."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def talk(users: int, seed: int) -> dict[str, list[tuple[str, str]]]:
    """Sentences in which each word is followed by one of two: enough to learn from."""
    generator = np.random.default_rng(seed)
    said = {}
    for user in range(users):
        lines = []
        for _ in range(8):
            place, words = int(generator.integers(10)), []
            for _ in range(int(generator.integers(4, 15))):
                words.append(WORDS[place])
                place = (place + int(generator.choice([1, 3], p=[0.8, 0.2]))) % 10
            lines.append((" ".join(words), "answer"))
        said[f"{user:04d}"] = lines
    return said


@pytest.mark.usefixtures("one_thread")
def test_private_training_on_users_text_lowers_the_loss(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from safetensors.torch import load_file

    from dpmerge_lab.training import ftrl
    from dpmerge_lab.training.ftrl_recipe import FtrlRecipe
    from dpmerge_lab.training.lstm import NextWord, next_word_accuracy, next_word_loss

    vocabulary = Vocabulary.load(write_counts(tmp_path / "counts", WORDS), size=10)
    train = UserText.load(write_text(tmp_path / "train.h5", talk(330, 0)), vocabulary, length=10)
    test = UserText.load(write_text(tmp_path / "test.h5", talk(20, 1)), vocabulary, length=10)
    inputs, targets = (torch.from_numpy(part) for part in test.all_examples())
    network = NextWord(vocabulary.size, embedding=8, hidden=16)
    measured: list[tuple[float, float]] = []

    def measure(state: dict[str, Any]) -> None:
        network.load_state_dict(state)
        with torch.no_grad():
            loss = float(next_word_loss(network, inputs, targets))
        measured.append((loss, next_word_accuracy(network, inputs, targets)))

    measure(network.state_dict())
    recipe = FtrlRecipe(
        rounds=30,
        users_per_round=20,
        clip=1.0,
        noise_multiplier=0.8,
        server_learning_rate=0.5,
        client_learning_rate=0.5,
        momentum=0.9,
        restarts=1,
    )
    folders = ftrl.train_ftrl(network, train, recipe, next_word_loss, dataset="330 users", out=tmp_path / "run", keep=[15])
    for folder in folders:
        measure(load_file(folder / "model.safetensors"))
    (first, _), (middle, _), (last, accuracy) = measured
    assert middle < first - 0.15 and last < middle - 0.2 and accuracy > 0.25, measured  # twelve runs: 0.28, 0.51, 0.40 at least
    portfolio = Portfolio(tmp_path / "run")
    assert {(model.record.adjacency, model.record.dataset) for model in portfolio.models} == {("zero-out", "330 users")}


@pytest.mark.usefixtures("one_thread")
def test_the_example_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    document = (Path(__file__).parent.parent.parent / "docs" / "ftrl.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", document, re.DOTALL))
    small = {"rounds=2000": "rounds=3", "users_per_round=100": "users_per_round=4", "[500, 1000, 1500]": "[1, 2]"}
    small |= {"rounds=508": "rounds=3", "bands=127": "bands=2"}
    small |= {
        "Vocabulary.load(data / ": "Vocabulary.load(size=11, path=data / ",
        "NextWord(": "NextWord(embedding=4, hidden=5, words=",
    }
    for long, short in small.items():
        assert long in code, long
        code = code.replace(long, short)
    (tmp_path / "stackoverflow").mkdir()
    write_counts(tmp_path / "stackoverflow" / "stackoverflow.word_count", WORDS)
    write_text(tmp_path / "stackoverflow" / "stackoverflow_train.h5", talk(20, 0))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(code)
    made = runpy.run_path(str(tmp_path / "example.py"))
    assert sorted(folder.name for folder in (tmp_path / "run").iterdir()) == ["ftrl@1", "ftrl@2", "ftrl@3"]
    assert made["banded"].banded.columns.shape == (3, 2)
