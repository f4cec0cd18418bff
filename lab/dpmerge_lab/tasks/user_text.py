"""Sentences by user, in the layout in which StackOverflow's are published (TensorFlow Federated): next-word prediction.

    stackoverflow_train.h5      examples/USER/tokens   a user's sentences, words between single spaces
                                examples/USER/type     `question` or `answer`, for each sentence; and more, which is not read
    stackoverflow.word_count    a word and its count on each line, the most frequent first

Ids are TensorFlow Federated's: 0 padding, 1 … V the words, V + 1 any other word, V + 2 a sentence's beginning, V + 3 its end.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.errors import DataError

Tokens = npt.NDArray[np.int64]
Kind = Literal["question", "answer"]
PAD = 0


@dataclass(frozen=True)
class Vocabulary:
    """The words that have an id, the most frequent first. It is taken to be public: no guarantee covers how it came about."""

    words: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not self.words or len(set(self.words)) != len(self.words):
            raise DataError(f"a vocabulary needs words, each once; of {len(self.words)} here {len(set(self.words))} differ")

    @classmethod
    def load(cls, path: Path, size: int = 10_000) -> Vocabulary:
        """The first `size` words of a file of word counts."""
        words: list[bytes] = []
        try:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if len(words) == size:
                        break
                    fields = line.split()
                    if len(fields) != 2 or not fields[1].isdigit():
                        raise DataError(f"{path}, line {number}: must be a word and its count; it is {line.strip()!r}")
                    words.append(fields[0])
        except OSError as fault:
            raise DataError(f"{path}: cannot be read: {fault.strerror or fault}") from None
        if size < 1 or len(words) < size:
            raise DataError(f"{path}: a vocabulary of {size} words was asked for; the file has {len(words)}")
        return cls(tuple(words))

    @property
    def size(self) -> int:
        """How many ids there are, the four special ones included."""
        return len(self.words) + 4

    @property
    def unknown(self) -> int:
        """Any word that is not in the vocabulary."""
        return len(self.words) + 1

    @property
    def begin(self) -> int:
        """Before the first word."""
        return len(self.words) + 2

    @property
    def end(self) -> int:
        """After the last word, if the sentence is whole."""
        return len(self.words) + 3

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {word: place for place, word in enumerate(self.words, 1)}

    def encode(self, sentence: bytes, length: int) -> list[int]:
        """`length` + 1 ids: the beginning, at most `length` words, the end if there is room, and padding."""
        words = [self._ids.get(word, self.unknown) for word in sentence.split(b" ")[:length]]
        ids = [self.begin, *words, self.end][: length + 1]
        return ids + [PAD] * (length + 1 - len(ids))


@dataclass(frozen=True)
class UserText:
    """Users with their sentences, read when they are asked for: at most the first `most` of a user, `length` words of each.

    With `kind` only questions, or only answers, count.
    """

    path: Path
    vocabulary: Vocabulary
    users: tuple[str, ...]
    length: int = 20
    most: int = 256
    kind: Kind | None = None

    def __post_init__(self) -> None:
        if self.length < 1 or self.most < 1:
            raise DataError(f"sentences need a length and users a number of them; got length {self.length}, most {self.most}")
        if self.kind not in (None, "question", "answer"):
            raise DataError(f"kind must be question or answer; got {self.kind!r}")

    @classmethod
    def load(
        cls, path: Path, vocabulary: Vocabulary, *, length: int = 20, most: int = 256, kind: Kind | None = None
    ) -> UserText:
        """All users of a file, in the order of their ids."""
        with _opened(path) as groups:
            users = tuple(sorted(groups.keys()))
        if not users:
            raise DataError(f"{path}: there are no users under examples/")
        return cls(path, vocabulary, users, length, most, kind)

    def __len__(self) -> int:
        return len(self.users)

    def examples(self, user: int, step: int = 0) -> tuple[Tokens, Tokens]:
        """A user's sentences, one a row, and the same moved by one word: what follows each. The same in every round."""
        ids = np.array(
            [self.vocabulary.encode(text, self.length) for text in self._sentences(self.users[user])], dtype=np.int64
        )
        ids = ids.reshape(-1, self.length + 1)
        return ids[:, :-1], ids[:, 1:]

    def all_examples(self) -> tuple[Tokens, Tokens]:
        """Those of all users: to measure on, where there are few."""
        inputs, targets = zip(*(self.examples(user) for user in range(len(self))), strict=True)
        return np.concatenate(inputs), np.concatenate(targets)

    def only(self, kind: Kind) -> UserText:
        """The same users with their questions, or answers, alone."""
        return replace(self, kind=kind)

    def split(self, count: int) -> tuple[UserText, UserText]:
        """`count` users and all others: those whose ids have the smallest hashes, whatever they wrote."""
        if not 0 < count < len(self):
            raise DataError(f"{self.path}: {count} users cannot be split from {len(self)}; some must be left on either side")
        hashed = sorted(self.users, key=lambda user: hashlib.sha256(user.encode()).digest())
        first, rest = tuple(sorted(hashed[:count])), tuple(sorted(hashed[count:]))
        return replace(self, users=first), replace(self, users=rest)

    def _sentences(self, user: str) -> list[bytes]:
        with _opened(self.path) as groups:
            try:
                tokens = groups[user]["tokens"]
                if self.kind is None:
                    found: list[bytes] = tokens[: self.most].tolist()
                else:
                    kinds = groups[user]["type"][:].tolist()
                    found = [text for text, kind in zip(tokens[:].tolist(), kinds, strict=True) if kind == self.kind.encode()]
            except (KeyError, TypeError, ValueError, AttributeError) as fault:
                raise DataError(f"{self.path}: the examples of user {user!r} cannot be read: {fault}") from None
        if not all(isinstance(text, bytes) for text in found):
            raise DataError(f"{self.path}: the tokens of user {user!r} are no text")
        return found[: self.most]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The group of all users' examples."""
    try:
        import h5py
    except ImportError:
        raise DataError("text in HDF5 files needs h5py; install dpmerge[text]") from None
    try:
        file = h5py.File(path, "r")
    except OSError as fault:
        raise DataError(f"{path}: cannot be read as an HDF5 file: {fault}") from None
    with file:
        if not isinstance(file.get("examples"), h5py.Group):
            raise DataError(f"{path}: there is no group examples/, with one group for each user")
        yield file["examples"]
