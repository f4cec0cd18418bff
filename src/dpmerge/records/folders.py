"""Which sub-folders of a portfolio are models. What is none is passed over and said; what may be one is never left out."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dpmerge.errors import PortfolioError

_LOG = logging.getLogger("dpmerge.records")  # the command line shows it, one line each
# What models are stored in, whether the library reads it or not (checkpoints/opening.py).
_TENSORS = re.compile(
    r".*\.(safetensors|bin|pth?|ckpt|np[zy]|h5|msgpack|gguf|onnx)|.*\.(safetensors|bin)\.index\.json|adapter_config\.json"
)
_CERTIFICATE = "certificate.json"


def model_folders(portfolio: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The folders of models, in order, and the names of those that hold neither a record nor tensors."""
    if not portfolio.is_dir():
        raise PortfolioError(f"{portfolio}: no such folder; a portfolio is a folder with one sub-folder for each model")
    shown = sorted(path for path in portfolio.iterdir() if not path.name.startswith("."))
    for path in shown:
        if path.is_symlink() and not path.exists():
            raise PortfolioError(
                f"{path}: is a link that points nowhere, so whether it is a model is not known; mend the link, or remove it"
            )
    folders = [path for path in shown if path.is_dir()]
    models = [path for path in folders if _may_be_model(path)]
    passed_over = tuple(path.name for path in folders if path not in models)
    if not models:
        also = f" ({', '.join(map(repr, passed_over))}: neither a record.json nor tensors)" if passed_over else ""
        raise PortfolioError(f"{portfolio}: no models here; each sub-folder with a record.json is one{also}")
    if passed_over:
        _LOG.info("%s: passed over %s: neither a record.json nor tensors", portfolio, ", ".join(map(repr, passed_over)))
    return models, passed_over


def require_outside(out: Path, portfolio: Path) -> None:
    """Refuse an output that would lie among the models, or in one: the next command would take it for one of them."""
    place, home = out.resolve(), portfolio.resolve()
    if place.is_relative_to(home) and not any(part.startswith(".") for part in place.relative_to(home).parts[:1]):
        raise PortfolioError(f"{out}: lies inside the portfolio {portfolio}, where folders are models; write it elsewhere")


def _may_be_model(folder: Path) -> bool:
    """Whether it has a record, or cannot be looked into; tensors without a record are refused."""
    if not os.access(folder, os.R_OK | os.X_OK) or os.path.lexists(folder / "record.json"):
        return True
    names = set(_files(folder))
    if _CERTIFICATE in names:
        raise PortfolioError(
            f"{folder}: is a release ({_CERTIFICATE}), not a model of this portfolio; move it out of the portfolio's folder"
        )
    tensors = sorted(name for name in names if _TENSORS.fullmatch(name.lower()))
    if tensors:
        raise PortfolioError(
            f"{folder}: holds files of a model ({tensors[0]}) but no record.json, so what it guarantees is not known; "
            "write its record (docs/records.md; dpmerge record from-opacus makes one of an Opacus checkpoint), or move the "
            "folder elsewhere"
        )
    return False


def _files(folder: Path) -> Iterator[str]:
    """The names in a folder and in the folders in it: several releases, or several checkpoints, may lie in one."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        yield path.name
