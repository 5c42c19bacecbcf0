"""Parquet files with one image per row: its encoded bytes, or the path of its file.

Rows are read one row group at a time, so reading in order is fast and takes the memory of one row group. Reading in
random order is slow; `hf:` data suits training better.
"""

from __future__ import annotations

import functools
import glob
import importlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data.folder import open_image_file
from foveate.data.images import DataError
from foveate.data.labels import Labels, Request, label_text, written_labels
from foveate.data.limits import IMAGE_BYTES, check_inside
from foveate.data.shards import expand
from foveate.data.source import ImageData, image_data
from foveate.data.splits import check_undivided

SUFFIX = ".parquet"
PATHS = ("image", "path", "file", "file_name", "filename")
"""Columns of text that hold paths if nobody names the column."""


@dataclass(frozen=True)
class ParquetImages:
    """Images by their row; a row is in a row group of a file."""

    files: list[str]
    stamps: list[tuple[int, int]]
    """Size and time of each file, so that a file that was replaced is read again."""
    file: NDArray[np.int32]  # (G,) the file of each row group
    group: NDArray[np.int32]  # (G,) its number in that file
    first: NDArray[np.int64]  # (G,) its first row, counted over all files
    count: int
    column: str
    keys: list[str] | None

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        if self.keys is not None:
            return self.keys[index]
        place = self._place(index)
        in_file = index - self.first[int(np.searchsorted(self.file, self.file[place]))]
        return f"{self.files[self.file[place]]}[{in_file}]"

    def open(self, index: int) -> Image.Image:
        place = self._place(index)
        number = int(self.file[place])
        path = self.files[number]
        rows = _row_group(path, self.stamps[number], int(self.group[place]), self.column)
        stored = rows[int(index - self.first[place])].as_py()
        content, named = (stored.get("bytes"), stored.get("path")) if isinstance(stored, dict) else (stored, stored)
        if isinstance(content, bytes):
            IMAGE_BYTES.check(len(content), f"{self.name(index)} has {len(content)} bytes")
            return Image.open(io.BytesIO(content))
        if not isinstance(named, str):
            raise ValueError(f"the column {self.column!r} is empty")
        check_inside([Path(path).parent], [named], self.name(index))
        return open_image_file(Path(path).parent / named)

    def _place(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(f"There are {self.count} rows, got row {index}.")
        return int(np.searchsorted(self.first, index, side="right")) - 1


@functools.lru_cache(maxsize=1)
def _row_group(path: str, stamp: tuple[int, int], group: int, column: str) -> Any:
    with library().ParquetFile(path) as file:
        return file.read_row_group(group, columns=[column]).column(column).combine_chunks()


def library() -> Any:
    """The package pyarrow.parquet."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError("Parquet data needs the package 'pyarrow': pip install foveate[scale]") from error


def open_parquet(
    pattern: str,
    request: Request,
    image_column: str | None = None,
    key_column: str | None = None,
    label_column: str | None = None,
) -> ImageData:
    """Open a file, a folder of files, or a pattern such as `images-{00..15}.parquet`."""
    where = pattern if pattern.endswith(SUFFIX) and "*" not in pattern else f"parquet:{pattern}"
    files = _find(pattern, where)
    check_undivided(request.split, Path(pattern).name.removesuffix(SUFFIX), where)
    footers = [_footer(path) for path in files]
    column = _image_column(footers[0].schema_arrow, image_column, where)
    for path, footer in zip(files, footers, strict=True):
        if footer.schema_arrow.field(column).type != footers[0].schema_arrow.field(column).type:
            raise DataError(f"The column {column!r} has another type in {path} than in {files[0]}.")
    groups = [(f, g, footer.metadata.row_group(g).num_rows) for f, footer in enumerate(footers)
              for g in range(footer.metadata.num_row_groups)]  # fmt: skip
    rows = np.array([count for *_, count in groups], dtype=np.int64)
    stamps = [(Path(path).stat().st_size, Path(path).stat().st_mtime_ns) for path in files]
    pictures = ParquetImages(
        files,
        stamps,
        np.array([file for file, *_ in groups], dtype=np.int32),
        np.array([group for _, group, _ in groups], dtype=np.int32),
        np.cumsum(rows) - rows,
        int(rows.sum()),
        column,
        None if key_column is None else _texts(files, key_column, "key", where),
    )
    return image_data(pictures, request.split, _labels(files, footers, label_column, request, pictures), where)


def _find(pattern: str, where: str) -> list[str]:
    if Path(pattern).is_dir():
        pattern = str(Path(glob.escape(pattern)) / f"*{SUFFIX}")
    found = [path for one in expand(pattern) for path in ([one] if Path(one).is_file() else sorted(glob.glob(one)))]
    if not found:
        raise DataError(f"{where}: there is no such file.")
    return found


def _footer(path: str) -> Any:
    try:
        with library().ParquetFile(path) as file:
            return file
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def _image_column(schema: Any, wanted: str | None, where: str) -> str:
    types = importlib.import_module("pyarrow").types
    binary = [f.name for f in schema if types.is_binary(f.type) or types.is_large_binary(f.type)]
    structs = [f.name for f in schema if types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0]
    texts = [f.name for f in schema if types.is_string(f.type) or types.is_large_string(f.type)]
    usable = [*structs, *binary, *texts]
    if wanted is not None:
        if wanted not in usable:
            what = "is not bytes or text" if wanted in schema.names else "does not exist"
            raise DataError(f"{where}: the column {wanted!r} {what}; its columns are {', '.join(schema.names)}.")
        return wanted
    found = structs + binary or [name for name in PATHS if name in texts][:1]
    if len(found) == 1 or "image" in found:
        return "image" if "image" in found else found[0]
    what = f"several columns of bytes ({', '.join(found)})" if found else f"no column of bytes, nor {', '.join(PATHS)}"
    raise DataError(f"{where} has {what}; its columns are {', '.join(schema.names)}. Name one: --image-column.")


def _texts(files: list[str], column: str, what: str, where: str) -> list[str]:
    """One column of all files as text."""
    found: list[str] = []
    for path in files:
        with library().ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                known = ", ".join(file.schema_arrow.names)
                raise DataError(f"{path} has no column {column!r} for the {what}; it has {known}.")
            values = file.read(columns=[column]).column(column).to_pylist()
        if None in values:
            raise DataError(f"{path}, row {values.index(None)}: the {what} column {column!r} is empty.")
        found += [label_text(value, f"{path}, column {column!r}") for value in values]
    return found


def _labels(
    files: list[str], footers: list[Any], column: str | None, request: Request, pictures: ParquetImages
) -> Labels | None:
    if not request.labels or (column is None and "label" not in footers[0].schema_arrow.names):
        if request.classes is not None:
            raise DataError(f"{files[0]} has no labels, but {len(request.classes)} classes were expected.")
        return None
    texts = _texts(files, column or "label", "label", files[0])
    return written_labels(texts, texts, request, files[0], pictures.name)
