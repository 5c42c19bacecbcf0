"""Saving and loading of results, finished or partial. Each file is written atomically."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.files import FORMAT, read_json, sealed, unsealed, write_text, write_texts
from foveate.report.compare.comparison import Comparison

RESULTS, TABLE, PAGE, PARTIAL = "results.json", "results.csv", "index.html", "partial.json"
RESULTS_FORMATS = (1, 2)
"""The first had no checksum."""


def save_results(comparison: Comparison, folder: Path) -> Path:
    """Write the page, the table and the results, in this order: if the results exist, so does the rest."""
    texts = {
        PAGE: render_page(comparison),
        TABLE: as_csv(comparison),
        RESULTS: json.dumps(as_document(comparison), indent=2) + "\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_texts({folder / name: text for name, text in texts.items()})
    if comparison.complete:
        (folder / PARTIAL).unlink(missing_ok=True)
    return folder


def load_results(folder: str | os.PathLike[str]) -> Comparison:
    """Load a saved comparison, without the token maps of its page.

    Args:
        folder: The folder that ``Comparison.save`` wrote to.

    Raises:
        ValueError: If the folder has no results, or they are damaged.
    """
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise ValueError(f"{path} does not exist. Pass the folder of a saved comparison.")
    data = read_json(path, RESULTS_FORMATS)
    if data["format"] > 1:
        data = unsealed(data, path, "Repeat the comparison.")
    return Comparison.from_dict(data)


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Return the content of results.json."""
    return sealed_plain({"format": RESULTS_FORMATS[-1], **comparison.as_dict()})


def sealed_plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` as a reader of JSON gets it, with the checksum of that."""
    return sealed(json.loads(json.dumps(data)))


def render_page(comparison: Comparison) -> str:
    """Return the HTML page. Imported here, because most uses of a comparison do not need it."""
    from foveate.report.page import render

    return render(comparison, comparison.gallery, comparison.predictions)


def as_csv(comparison: Comparison) -> str:
    """Return the table as CSV with a header; values that were not measured are empty."""
    rows = comparison.table()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class Partial:
    """The measurements of an unfinished run, in ``partial.json``, so that it can be resumed."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.path = folder / PARTIAL
        self._created = [place for place in (folder, *folder.parents) if not place.exists()]
        self.identity = json.loads(json.dumps(identity))

    def read(self) -> dict[str, Any] | None:
        """Return the stored measurements; None if there are none.

        Raises:
            ValueError: If they belong to another comparison; the error names the differences.
        """
        if not self.path.is_file():
            return None
        stored = unsealed(read_json(self.path), self.path, "Leave out --resume to start again.")
        theirs, ours = stored.get("identity", {}), self.identity
        differing = [name for name in ours if theirs.get(name) != ours[name]]
        if differing:
            found = "; ".join(f"{name} was {_short(theirs.get(name))}, now {_short(ours[name])}" for name in differing)
            raise ValueError(
                f"{self.path} belongs to another comparison: {found}. Change it back, or leave out --resume."
            )
        return dict(stored["measured"])

    def discard(self) -> None:
        """Remove the file, and the folders that this run created."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder has other files by now
            for place in self._created:
                place.rmdir()

    def write(self, measured: Mapping[str, Any]) -> None:
        """Store the measurements so far."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, "identity": self.identity, "measured": measured}
        write_text(self.path, json.dumps(sealed_plain(content)))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
