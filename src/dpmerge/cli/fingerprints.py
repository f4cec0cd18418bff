"""`dpmerge record key` and `record fingerprint`: by which records of the same data are recognised (docs/records.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dpmerge.cli.commands import JsonOption, argument, option
from dpmerge.cli.output import echo, print_json
from dpmerge.errors import RecordError
from dpmerge.files import write_private
from dpmerge.training import fingerprint_of, new_data_key, read_data_key


def key(path: Annotated[Path, argument("A new file for the key.")], json: JsonOption = False) -> None:
    """A secret key for fingerprints of data.

    Whoever has it and knows all examples but one can test guesses of that one: it stays with the data's owner. Use one key for
    all fingerprints that are to be compared.
    """
    made = new_data_key(path)
    if json:
        print_json({"file": str(path), "key": made})
    else:
        echo(f"{path}: a key for fingerprints of data, keep it secret; records call it {made}")


def fingerprint(
    data: Annotated[Path, argument("A folder of files, a .csv file, or arrays (.npz, .npy, .safetensors, .parquet).")],
    key: Annotated[Path, option("File of the secret key (record key).")],
    out: Annotated[Path | None, option("Write it to this new file, for --data-fingerprint of the other commands.")] = None,
    json: JsonOption = False,
) -> None:
    """The fingerprint of a private dataset.

    By it models are recognised as of the same data, in whatever order these were read: every file of a folder is an example,
    every row of a .csv file after the first, every row of arrays x and y (or x_train and y_train). Without the key it tells
    whether two datasets are equal, and nothing else.
    """
    found = fingerprint_of(data, read_data_key(key))
    if out is not None:
        try:
            write_private(found.model_dump_json(indent=1).encode() + b"\n", out)
        except OSError as fault:
            raise RecordError(f"{out}: cannot be written: {fault.strerror}") from None
    if json:
        print_json(found.model_dump())
    else:
        echo(f"{found.value} under key {found.key}" + ("" if out is None else f", in {out}"))
