"""A portfolio: several models trained on one private dataset, and the weights a merge gives them."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpmerge.errors import DpmergeError, MissingRecord, PortfolioError, WeightsError
from dpmerge.notebook import frame, html_table
from dpmerge.records.looks import looks_like
from dpmerge.records.one_dataset import check_one_dataset
from dpmerge.records.record import Adjacency, DpFtrl, DpSgd, Gaussian, Mechanism, Record
from dpmerge.records.runs import Model, check_checkpoints
from dpmerge.records.shards import places
from dpmerge.records.strict import meant, named_numbers

if TYPE_CHECKING:
    from pandas import DataFrame

WEIGHT_SUM_TOLERANCE = 1e-9
_LOG = logging.getLogger("dpmerge.records")  # the command line shows it, one line each
# What models are stored in, whether the library reads it or not (tensors/opening.py).
_TENSORS = re.compile(
    r".*\.(safetensors|bin|pth?|ckpt|np[zy]|h5|msgpack|gguf|onnx)|.*\.(safetensors|bin)\.index\.json|adapter_config\.json"
)
_CERTIFICATE = "certificate.json"


@dataclass(frozen=True, init=False, repr=False)
class Portfolio:
    """Models trained on one dataset under one adjacency: from a folder with a sub-folder for each, or as given.

    `passed_over` are sub-folders that hold neither a record nor tensors.
    """

    models: tuple[Model, ...]
    passed_over: tuple[str, ...] = field(compare=False)

    def __init__(self, models: str | Path | Iterable[Model]) -> None:
        passed_over: tuple[str, ...] = ()
        if isinstance(models, str | Path):
            folders, passed_over = _model_folders(Path(models))
            models = map(_load, folders)
        object.__setattr__(self, "models", tuple(models))
        object.__setattr__(self, "passed_over", passed_over)
        check_one_dataset(self.models)
        check_checkpoints(self.models)
        places(self.models)  # refuses parts that contradict each other

    @classmethod
    def require(cls, given: object) -> None:
        """Refuse what was given in a portfolio's place: its folder, or another argument."""
        if isinstance(given, str | Path):
            raise PortfolioError(f"a Portfolio is due, not the path of one; read it first: dpmerge.Portfolio({str(given)!r})")
        if not isinstance(given, cls):
            raise PortfolioError(f"a Portfolio is due, not a {type(given).__name__}: are two arguments swapped?")

    def __iter__(self) -> Iterator[Model]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, name: str) -> Model:
        self.require_names([name], PortfolioError)
        return self.models[self.names.index(name)]

    def __repr__(self) -> str:
        return f"Portfolio of {len(self)} on {self.models[0].record.dataset}: {', '.join(self.names)}"

    def _repr_html_(self) -> str:
        rows = self._rows()
        return html_table(list(rows[0]), [list(row.values()) for row in rows])

    def to_frame(self) -> DataFrame:
        """One row for each model; needs pandas."""
        return frame(self._rows())

    def _rows(self) -> list[dict[str, object]]:
        return [
            {
                "name": model.name,
                "mechanism": model.mechanism.kind,
                "dataset": model.record.dataset,
                "data fingerprint": None if model.record.data_fingerprint is None else "yes",  # tables are shown around
                "adjacency": model.record.adjacency,
                "run": model.mechanism.run,
                "steps": getattr(model.mechanism, "steps", None),
                "starts from": None if model.start is None else model.start.name,
                "part": None if (shard := model.mechanism.shard) is None else f"{shard.part} of {shard.of}",
                "noise multiplier": _least_noise(model.mechanism),
            }
            for model in self.models
        ]

    @property
    def adjacency(self) -> Adjacency:
        return self.models[0].record.adjacency

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.models)

    def require_names(self, names: Iterable[str], error: type[DpmergeError]) -> None:
        for name in names:
            if name not in self.names:
                held = ", ".join(map(repr, self.names))
                raise error(f"no model named {name!r} in the portfolio; it has {held}{meant(name, self.names)}")

    def require_outside(self, out: Path) -> None:
        """Refuse an output folder inside the portfolio: it would later be read as one of its models."""
        place = out.resolve()
        for folder in {model.folder.parent for model in self.models if model.folder is not None}:
            home = folder.resolve()
            if place.is_relative_to(home) and not any(part.startswith(".") for part in place.relative_to(home).parts[:1]):
                raise PortfolioError(f"{out}: lies inside the portfolio {folder}, where folders are models; write it elsewhere")

    def weights_in_order(self, values: Iterable[float]) -> Weights:
        return self.weights(dict(zip(self.names, values, strict=True)))

    def weights(self, given: Mapping[str, float]) -> Weights:
        """Check weights against this portfolio; a model that is not named has weight 0."""
        return Weights.over(self, given)


@dataclass(frozen=True)
class Weights:
    """A distribution over a portfolio's models, exactly as given: never renormalised."""

    portfolio: Portfolio
    values: tuple[float, ...]

    @classmethod
    def over(cls, portfolio: Portfolio, given: Mapping[str, float]) -> Weights:
        """Refuse unknown names, values outside [0, 1] and sums away from 1."""
        if not isinstance(given, Mapping):
            raise WeightsError(f"weights are given by name, {{{portfolio.names[0]!r}: 1.0}}, not as a {type(given).__name__}")
        portfolio.require_names(given, WeightsError)
        for name, value in given.items():
            if not math.isfinite(value) or value < 0:
                raise WeightsError(f"the weight of {name!r} is {value}; weights are finite and non-negative")
        total = math.fsum(given.values())
        if abs(total - 1) > WEIGHT_SUM_TOLERANCE:
            raise WeightsError(
                f"the weights sum to {total!r}, not 1 (within {WEIGHT_SUM_TOLERANCE:g}); "
                "they are never renormalised: give the weights you mean"
            )
        return cls(portfolio, tuple(float(given.get(name, 0.0)) for name in portfolio.names))

    @classmethod
    def parse(cls, portfolio: Portfolio, text: str) -> Weights:
        """Read `a=0.2,b=0.8`; a value may be a fraction (`a=1/3`)."""
        return cls.over(portfolio, named_numbers(text, "weight", WeightsError))

    def as_dict(self) -> dict[str, float]:
        """Every model with its weight, zeros included."""
        return dict(zip(self.portfolio.names, self.values, strict=True))

    @property
    def total(self) -> float:
        """Their sum, which may differ from 1 by rounding."""
        return math.fsum(self.values)

    @property
    def used(self) -> tuple[tuple[Model, float], ...]:
        return tuple((m, w) for m, w in zip(self.portfolio.models, self.values, strict=True) if w > 0)

    def or_looked_at(self, names: Iterable[str]) -> tuple[Model, ...]:
        """The models that have weight or are named, in order: what a choice of these weights may depend on."""
        looked = set(names)
        self.portfolio.require_names(looked, WeightsError)
        return tuple(m for m, w in zip(self.portfolio.models, self.values, strict=True) if w > 0 or m.name in looked)


def _least_noise(mechanism: Mechanism) -> float | None:
    """The noise multiplier; of several phases the least."""
    if isinstance(mechanism, DpSgd):
        return min(phase.noise_multiplier for phase in mechanism.settings())
    if isinstance(mechanism, Gaussian):
        return mechanism.noise_std / mechanism.sensitivity
    return mechanism.noise_multiplier if isinstance(mechanism, DpFtrl) else None


def _model_folders(portfolio: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The folders of models, in order, and the names of those that hold neither a record nor tensors."""
    folders = _folders(portfolio)
    models = [path for path in folders if _may_be_model(path)]
    passed_over = tuple(path.name for path in folders if path not in models)
    if not models:
        if (seen := looks_like(portfolio)) == "one model":
            raise PortfolioError(f"{portfolio}: is one model; a portfolio is the folder around it")
        if seen == "a release":
            raise PortfolioError(f"{portfolio}: is a release, not a portfolio, which has one sub-folder for each model")
        if any(_TENSORS.fullmatch(path.name.lower()) for path in portfolio.glob("*")):
            raise PortfolioError(f"{portfolio}: holds one model, without a record.json; a portfolio is the folder around it")
        also = f" ({', '.join(map(repr, passed_over))}: neither a record.json nor tensors)" if passed_over else ""
        raise PortfolioError(f"{portfolio}: no models here; each sub-folder with a record.json is one{also}")
    if passed_over:
        _LOG.info("%s: passed over %s: neither a record.json nor tensors", portfolio, ", ".join(map(repr, passed_over)))
    return models, passed_over


def _folders(portfolio: Path) -> list[Path]:
    if not portfolio.is_dir():
        seen = looks_like(portfolio)
        what = f"is {seen}" if seen else "no such folder"
        raise PortfolioError(f"{portfolio}: {what}; a portfolio is a folder with one sub-folder for each model")
    shown = sorted(path for path in portfolio.iterdir() if not path.name.startswith("."))
    for path in shown:
        if path.is_symlink() and not path.exists():
            raise PortfolioError(
                f"{path}: is a link that points nowhere, so whether it is a model is not known; mend the link, or remove it"
            )
    return [path for path in shown if path.is_dir()]


def _load(folder: Path) -> Model:
    model = Model(folder.name, Record.load(folder / "record.json"), folder)
    if not model.made_of and os.path.lexists(folder / _CERTIFICATE):
        raise PortfolioError(
            f"{folder}: is a release ({_CERTIFICATE}), but its record.json is that of a run, of which it is no model. Remove "
            "the certificate if it belongs to another model, or else the folder"
        )
    return model


def _may_be_model(folder: Path) -> bool:
    """Whether it has a record, or is unreadable; tensors without a record are refused."""
    if not os.access(folder, os.R_OK | os.X_OK) or os.path.lexists(folder / "record.json"):
        return True
    names = set(_files(folder))
    if _CERTIFICATE in names:
        raise PortfolioError(
            f"{folder}: is a release ({_CERTIFICATE}) without a record.json, so what it costs beside other models is not "
            "known; move it out of the portfolio's folder"
        )
    tensors = sorted(name for name in names if _TENSORS.fullmatch(name.lower()))
    if tensors:
        raise MissingRecord(
            f"{folder}: holds files of a model ({tensors[0]}) but no record.json, so what it guarantees is not known; "
            "dpmerge.training.record writes one while a model is trained, dpmerge.training.new_record one of what you state "
            "(from_opacus for Opacus' checkpoints); or move the folder elsewhere",
            folder,
        )
    return False


def _files(folder: Path) -> Iterator[str]:
    """The names in a folder and in its sub-folders, which may be several releases or checkpoints."""
    yield from (path.name for path in (*folder.glob("*"), *folder.glob("*/*")))
