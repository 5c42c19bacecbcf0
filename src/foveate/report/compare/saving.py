"""What a comparison writes: its results, and what it has so far, each file in one step."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.report.compare.comparison import Comparison
from foveate.storage import FORMAT, read_json, write_text

RESULTS, TABLE, PAGE, PARTIAL = "results.json", "results.csv", "index.html", "partial.json"


def save_results(comparison: Comparison, folder: Path) -> Path:
    """Write the page, the table and the results, in this order: where results are, the rest is there too."""
    texts = {
        PAGE: render_page(comparison),
        TABLE: as_csv(comparison),
        RESULTS: json.dumps(as_document(comparison), indent=2) + "\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    if comparison.complete:
        (folder / PARTIAL).unlink(missing_ok=True)
    return folder


def load_results(folder: str | os.PathLike[str]) -> Comparison:
    """The comparison that ``save_results`` wrote; its token maps stay in the page."""
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise ValueError(f"There is no {path}. Give the folder that a comparison was saved to.")
    return Comparison.from_dict(read_json(path))


def as_document(comparison: Comparison) -> dict[str, Any]:
    """What results.json holds."""
    return {"format": FORMAT, **comparison.as_dict()}


def render_page(comparison: Comparison) -> str:
    """The HTML page; imported here, because most uses of a comparison need none."""
    from foveate.report.page import render

    return render(comparison, comparison.gallery)


def as_csv(comparison: Comparison) -> str:
    """The table, with a line of column names; what was not measured is empty."""
    rows = comparison.table()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_writable(folder: Path) -> None:
    """Raise before the work where ``folder`` could not be written after it; leaves nothing behind."""
    missing: list[Path] = []
    probe = folder / f".foveate-{secrets.token_hex(4)}"
    try:
        missing += [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise ValueError(f"The folder {folder} cannot be written: {error.strerror}. Name another one.") from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
            for place in missing:
                place.rmdir()


class Partial:
    """What a run has measured so far, in ``partial.json``, for one that goes on."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.path = folder / PARTIAL
        self._made = [place for place in (folder, *folder.parents) if not place.exists()]
        self.identity = json.loads(json.dumps(identity))

    def read(self) -> dict[str, Any] | None:
        """What is stored; None where nothing is. What belongs to another comparison is refused, by what differs."""
        if not self.path.is_file():
            return None
        stored = read_json(self.path)
        theirs, ours = stored.get("identity", {}), self.identity
        differing = [name for name in ours if theirs.get(name) != ours[name]]
        if differing:
            found = "; ".join(f"{name} was {_short(theirs.get(name))}, now {_short(ours[name])}" for name in differing)
            raise ValueError(
                f"{self.path} is of another comparison: {found}. Run it as before, or leave out --resume to begin anew."
            )
        return dict(stored["measured"])

    def discard(self) -> None:
        """Leave nothing of this run behind, and no folder that it made."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else has put something there
            for place in self._made:
                place.rmdir()

    def write(self, measured: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps({"format": FORMAT, "identity": self.identity, "measured": measured}))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
