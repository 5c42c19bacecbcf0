"""Write which test caught which break, as a file like those in results/."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from .entry import Break
from .running import CAUGHT, Verdict


def record(path: Path, entries: Sequence[Break], verdicts: Mapping[str, Verdict]) -> None:
    """Write the outcome of a run; what an earlier run wrote of other breaks stays."""
    found = _earlier(path) | {name: caught_by(verdict) for name, verdict in verdicts.items()}
    rows = [(entry.name, entry.file, found[entry.name]) for entry in entries if entry.name in found]
    caught = sum("::" in test for _, _, test in rows)
    header = {
        "command": "python -m tests.breaks",
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
        "versions": ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "transformers", "pytest")),
        "sample": f"{len(rows)} breaks, {caught} caught; tests stop at the first failure",
    }
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in header.items())
        csv.writer(file, lineterminator="\n").writerows([("name", "file", "caught_by"), *rows])


def _earlier(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {row["name"]: row["caught_by"] for row in csv.DictReader(lines)}


def caught_by(verdict: Verdict) -> str:
    """The test that failed, without its case; otherwise what happened."""
    return verdict.test.partition("[")[0] if verdict.words == CAUGHT else verdict.words


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
