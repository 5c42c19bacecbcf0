"""Predictions as Parquet: one file for each part, whole or not there."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROWS = 1024
"""Rows of a row group, which are in memory before they are written."""
JOB, BROKEN = b"foveate.job", b"foveate.broken"
"""Metadata of a file: the run that it belongs to, and how many of its images are broken."""


class Written(NamedTuple):
    """One finished part."""

    part: int
    rows: int
    broken: int


def arrow() -> Any:
    """The package pyarrow, with the parts that are used here."""
    try:
        for part in ("compute", "parquet"):
            importlib.import_module(f"pyarrow.{part}")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ValueError("Predictions are written by the package 'pyarrow': pip install foveate[scale]") from error


def file_name(part: int) -> str:
    return f"part-{part:06d}.parquet"


class PartFile(AbstractContextManager["PartFile"]):
    """Writes the rows of a part to ``path``, which the caller renames when it is complete."""

    def __init__(self, path: Path, job: str) -> None:
        self.path, self.job = path, job
        self.rows = self.broken = 0
        self._held: list[Any] = []
        self._writer: Any = None

    def add(self, keys: Sequence[str], columns: dict[str, Any]) -> None:
        """Add rows: the columns of ``Predictor.rows``."""
        self._held.append(as_table(keys, columns))
        self.rows += len(keys)
        self.broken += sum(bool(reason) for reason in columns["error"])
        if sum(map(len, self._held)) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        pa = arrow()
        table = pa.concat_tables(self._held)
        if self._writer is None:
            self._writer = pa.parquet.ParquetWriter(self.path, table.schema.with_metadata({JOB: self.job.encode()}))
        self._writer.write_table(table)
        self._held = []

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None and self._held:
            self._flush()
        if self._writer is not None:
            if kind is None:
                self._writer.add_key_value_metadata({BROKEN: str(self.broken).encode()})
            self._writer.close()


def as_table(keys: Sequence[str], columns: dict[str, Any]) -> Any:
    """A pyarrow table; where there is an error, all but the key and the error is null."""
    pa = arrow()
    failed = np.array([bool(reason) for reason in columns["error"]], dtype=bool)
    found = {"key": pa.array(list(keys), pa.string())}
    for name, values in columns.items():
        if name == "error":
            found[name] = pa.array([reason or None for reason in values], pa.string())
        else:
            flat = pa.array(values.reshape(-1), pa.string() if values.dtype == object else None)
            found[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(failed))
    return pa.table(found)


def read_footer(path: Path) -> tuple[str, int, int] | None:
    """The run, the rows and the broken images of a part; None if the file is damaged."""
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            stored = file.metadata.metadata or {}
            return stored[JOB].decode(), file.metadata.num_rows, int(stored[BROKEN])
    except (OSError, ValueError, KeyError):
        return None


def read_failures(path: Path, most: int) -> list[dict[str, str]]:
    """Keys and reasons of the first ``most`` broken images of a part."""
    pa = arrow()
    with pa.parquet.ParquetFile(path) as file:
        table = file.read(columns=["key", "error"])
    failed = table.filter(pa.compute.is_valid(table["error"])) if len(table) else table
    return failed.slice(0, most).to_pylist()
