"""The YAML file of `dpmerge train`: one data set, and the runs to make a portfolio of (docs/training.md).

YAML as strict as the other files here: every field once, names are text, and 1e-5 is a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import Field, model_validator

from dpmerge.bounded_yaml import MOST_BYTES, BoundedLoader, parse_yaml
from dpmerge.errors import TrainingError
from dpmerge.files import read_regular
from dpmerge.records import Positive, Strict, looks_like, parse_strict
from dpmerge.training.advice import LinearSetting
from dpmerge.training.data import DataSource, PublicNetwork, load as load_data
from dpmerge.training.feature_files import DataFiles, Name, is_file, read_constants
from dpmerge.training.linear import Loss
from dpmerge.training.public_network import NetworkName, network_centre
from dpmerge.training.recipe import Recipe
from dpmerge.training.trainer import ALTERNATIVES, RunForm, Trainer, find_trainer

_NAME = re.compile(r"\w[\w.+-]{0,99}")


class Normalise(Strict):
    """(x − mean) / deviation, for each channel or feature: public constants, never computed from the private data.

    They are stated here, or in the file `constants`; or `constants: network`, what a public network says of its own features.
    """

    mean: Annotated[list[float], Field(min_length=1)] | None = None
    deviation: Annotated[list[Positive], Field(min_length=1)] | None = None
    constants: Name | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Normalise:
        mean, deviation = self.mean or [], self.deviation or []
        if bool(mean) == (self.constants is not None):
            raise ValueError("give mean and deviation, or constants")
        if len(mean) != len(deviation):
            raise ValueError(f"{len(mean)} means but {len(deviation)} deviations")
        return self


class _Data(Strict):
    """What the file says of the data, as it decides how every run is made."""

    data: Annotated[str, Field(min_length=1)] | DataFiles
    dataset: Annotated[str, Field(min_length=1)] | None = None
    classes: Annotated[int, Field(ge=2)] | None = None
    positive: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    features: NetworkName | PublicNetwork | None = None
    normalise: Normalise | None = None
    norm_bound: Annotated[float, Field(gt=1)] | None = None

    @property
    def name(self) -> str:
        """The data in a few words: never more than the file says."""
        return self.data if isinstance(self.data, str) else f"{self.data.train} and {self.data.test}"

    @property
    def files(self) -> str | DataFiles | None:
        return self.data if isinstance(self.data, DataFiles) or is_file(self.data) else None

    @property
    def network(self) -> PublicNetwork | None:
        return PublicNetwork(network=self.features) if isinstance(self.features, str) else self.features


class _File(_Data):
    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    defaults: Annotated[dict[str, Any], Field(default_factory=dict)]
    runs: Annotated[dict[str, dict[str, Any] | None], Field(min_length=1)]


@dataclass(frozen=True)
class PortfolioFile:
    """A file that was read: what it says of the data, every run with its defaults filled in, and who trains which model."""

    path: Path
    about: _Data
    runs: dict[str, RunForm]
    trainers: dict[str, Trainer]
    parts: dict[str, int]  # of the runs that see one of several parts of the data, which

    @classmethod
    def load(cls, path: Path, assumed: Mapping[str, Any] | None = None) -> PortfolioFile:
        """Read and validate; any fault is one line that names the file and the field. What is `assumed` need not be said."""
        read = parse_strict(_File, _as_json(path), str(path), TrainingError)
        runs: dict[str, RunForm] = {}
        trainers: dict[str, Trainer] = {}
        parts: dict[str, int] = {}
        for name, given in read.runs.items():
            where, whole = f"{path}: run {name!r}", _with_defaults({**(assumed or {}), **read.defaults}, given or {})
            if not _NAME.fullmatch(name):
                raise TrainingError(f"{where}: a name has letters, digits and . + - _ only: it becomes a folder's")
            model: Any = whole.get("model")
            try:
                if not isinstance(model, str) or model not in trainers:
                    trainers[model] = find_trainer(model)
            except TrainingError as fault:
                raise TrainingError(f"{where}: {fault}") from None
            form = parse_strict(trainers[model].form, json.dumps(whole), where, TrainingError)
            one_for_each = {f"{name}.{part}": part for part in range(1, (form.shards or 0) + 1)}
            for own in one_for_each or (name,):
                if own in runs:
                    raise TrainingError(f"{where}: its part {own!r} has the name of another run")
                runs[own] = form
            parts |= one_for_each
        return cls(path, read, runs, trainers, parts)

    def trainer(self, name: str) -> Trainer:
        """Of this run."""
        return self.trainers[self.runs[name].model]

    def start(self, name: str, out: Path) -> tuple[Path, str | None] | None:
        """The folder of the model that a run starts from, and the run of this file that makes it, if one does."""
        given = self.runs[name].start
        if given is None:
            return None
        run, at, step = given.rpartition("@")
        for parent in (given, run) if at and step.isdigit() else (given,):
            if parent in self.runs and parent != name:
                return out / given, parent
        return self.path.resolve().parent / given, None

    def waves(self, out: Path) -> list[list[str]]:
        """The names of the runs in an order in which each comes after the run that it starts from."""
        parents = {name: None if (found := self.start(name, out)) is None else found[1] for name in self.runs}
        waves: list[list[str]] = []
        left = list(self.runs)
        while left:
            ready = [name for name in left if parents[name] not in left]
            if not ready:
                raise TrainingError(f"{self.path}: runs {', '.join(map(repr, left))} start from each other")
            waves.append(ready)
            left = [name for name in left if name not in ready]
        return waves

    def source(self, folder: Path | None) -> DataSource:
        """The data of all runs, whose files, if there are any, are in this folder, or beside the portfolio's file."""
        about = self.about
        beside = self.path.parent if folder is None else folder
        mean, deviation = self._constants(beside)
        return DataSource(
            about.name,
            beside.resolve() if folder is not None or about.files is not None else None,
            about.classes,
            None if about.positive is None else tuple(about.positive),
            mean,
            deviation,
            about.files,
            about.network,
        )

    def _constants(self, folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Public means and deviations: stated, in a file, or what the public network says of its own features."""
        normal = self.about.normalise
        if normal is None:
            return (), ()
        if normal.constants is None:
            return tuple(normal.mean or ()), tuple(normal.deviation or ())
        if normal.constants != "network":
            return read_constants(folder / normal.constants)
        if self.about.network is None:
            raise TrainingError(f"{self.path}: field normalise: the data go through no network; state mean and deviation")
        mean = network_centre()
        return mean, (1.0,) * len(mean)

    def asked(self, name: str) -> dict[str, Any]:
        """Everything that decides how this run is made, as plain data: an unchanged run is not trained again."""
        ignored = set() if self.trainer(name).bounds_inputs else {"norm_bound"}
        about = self.about.model_dump(mode="json", include=_Data.model_fields.keys() - ignored, exclude_none=True)
        part = {"part": self.parts[name]} if name in self.parts else {}
        return about | self.runs[name].model_dump(mode="json", by_alias=True, exclude_defaults=True) | part

    def examples(self, folder: Path | None) -> int:
        """How many there are to train on; they are read."""
        return len(load_data(self.source(folder)).train)

    def one_setting(self, examples: int) -> LinearSetting:
        """What all runs of the file say but for their noise: one linear model, trained in one way."""
        runs = list(self.runs.values())
        if any(run.model_copy(update={"noise_multiplier": runs[0].noise_multiplier}) != runs[0] for run in runs):
            raise TrainingError(f"{self.path}: the runs differ; a design is for runs by one recipe")
        if runs[0].start is not None or runs[0].shards is not None:
            raise TrainingError(f"{self.path}: a design is for runs from zero on all of the data, without from and shards")
        if not self.trainer(next(iter(self.runs))).bounds_inputs or self.about.norm_bound is None:
            raise TrainingError(f"{self.path}: a design is for linear models with a norm_bound")
        return LinearSetting(Recipe(**runs[0].schedule(examples)), cast(Loss, runs[0].model), examples, self.about.norm_bound)


def _with_defaults(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    replaced = {other for group in ALTERNATIVES if given.keys() & set(group) for other in group}
    return {key: value for key, value in defaults.items() if key not in replaced} | given


def _as_json(path: Path) -> str:
    """The one document of the file as JSON text; a fault is one line that names the file and where it is."""
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise TrainingError(f"{path}: no such file; it says which data and which runs") from None
    except (OSError, UnicodeDecodeError) as fault:
        if path.is_dir():
            raise TrainingError(
                f"{path}: is {looks_like(path)}; give the YAML file that says which data and which runs"
            ) from None
        raise TrainingError(f"{path}: cannot be read: {fault}") from None
    try:
        # Dates and the like become text, which no field accepts for a number.
        return json.dumps(parse_yaml(text, _Loader), default=str)
    except (ValueError, TypeError, RecursionError) as fault:
        raise TrainingError(f"{path}: not valid YAML: {fault}") from None


class _Loader(BoundedLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name {key!r} is not text; quote it", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the field {key!r} appears twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML speaks, takes 1e-5 for text: it wants 1.0e-5. In YAML 1.2 both are numbers.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
