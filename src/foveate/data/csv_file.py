"""A CSV of files and labels, with columns `file` and, optionally, `label` and `split`."""

from __future__ import annotations

import csv
from pathlib import Path

from foveate.data.folder import IMAGE_FOLDERS, Files, subfolders
from foveate.data.images import DataError
from foveate.data.labels import Request, first_few, written_labels
from foveate.data.limits import check_inside
from foveate.data.source import ImageData, image_data
from foveate.data.splits import ALL, check_undivided, choose_split

Row = dict[str, str]
Lines = list[tuple[int, Row]]
"""Rows with their line numbers in the file (the last line of each)."""


def open_csv(path: Path, request: Request) -> ImageData:
    """Open a CSV. Files are relative to it, or to a folder of images beside it.

    Classes are those of the whole file, so that splits agree.
    """
    rows = _read_rows(path)
    columns, split = rows[0][1].keys(), request.split
    if "split" not in columns:
        check_undivided(split, path.stem, str(path))
    elif split != ALL:
        split = choose_split(split, {row["split"] for _, row in rows}, str(path))
    chosen = [(line, row) for line, row in rows if split == ALL or row.get("split", split) == split]
    files = [row["file"] for _, row in chosen]
    folder = _folder_of(path, files)
    _check_files(path, folder, files)
    labels = None
    if "label" in columns and request.labels:
        written, everywhere = ([row["label"] for _, row in some] for some in (chosen, rows))
        labels = written_labels(written, everywhere, request, str(path), lambda i: f"{path}, line {chosen[i][0]}")
    elif request.classes is not None:
        raise DataError(f"{path} has no column 'label', but {len(request.classes)} classes were expected.")
    return image_data(Files(folder, files), split, labels, str(path))


def _read_rows(path: Path) -> Lines:
    try:
        return _parsed(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}). Save it as UTF-8.") from error
    except csv.Error as error:  # a field above 131,072 characters, which a forgotten quote makes
        raise DataError(f"{path} is not a readable CSV: {error}. Look for a quote that is not closed.") from error


def _parsed(path: Path) -> Lines:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        found = reader.fieldnames or ()
        if "file" not in found:
            raise DataError(
                f"{path} has no column 'file'; it has {', '.join(found) or 'no columns'}. Name the column of paths "
                "'file' and that of classes 'label'."
            )
        columns = [name for name in ("file", "label", "split") if name in found]
        rows = [(reader.line_num, {name: (row[name] or "").strip() for name in columns}) for row in reader]
    for line, row in rows:
        for name, cell in row.items():
            if not cell:
                raise DataError(f"{path}, line {line}: the column {name!r} is empty.")
    if not rows:
        raise DataError(f"{path} has no rows.")
    return rows


def _folder_of(path: Path, files: list[str]) -> Path:
    """What paths are relative to: the CSV's folder, or its folder of images if the first file is only there."""
    beside = [path.parent / name for name in subfolders(path.parent) if name.lower() in IMAGE_FOLDERS]
    return next((folder for folder in (path.parent, *beside) if (folder / files[0]).is_file()), path.parent)


def _check_files(path: Path, folder: Path, files: list[str]) -> None:
    check_inside([folder], files, str(path))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(files)} files in {path} do not exist: {first_few(missing)}. "
            f"Paths are relative to {folder}."
        )
