"""Write the figures of a benchmark to a results file, with the command and the machine in its header."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import torch

from foveate.evaluation.environment import describe_environment

OUTPUTS = ("--csv", "--json", "--out", "--report", "--store", "--partial", "--settings")
"""Options that say where to write, which does not change the figures."""


def record(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], sample: str, *notes: str) -> None:
    """Write a CSV file like those in results/.

    Args:
        path: The file to write; it is replaced.
        columns: Names of the columns.
        rows: Cells, formatted with the digits to keep. None becomes an empty cell.
        sample: Model, number of images, runs and seeds.
        *notes: Remarks for the reader.
    """
    machine = describe_environment(torch.device("cpu"), torch.float32)
    header = {
        "command": command(),
        "machine": f"{machine.cpu}; cores: {machine.cores}, threads: {machine.threads}",
        "date": date.today().isoformat(),
        "versions": f"foveate {machine.foveate}, torch {machine.torch}, timm {machine.timm}; {machine.dtype}",
        "sample": sample,
    }
    lines = [f"# {key}: {value}\n" for key, value in [*header.items(), *(("note", note) for note in notes)]]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(lines)
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def command() -> str:
    """Return the running command, without local paths."""
    arguments = list(sys.argv[1:])
    for option in OUTPUTS:
        if option in arguments:
            del arguments[arguments.index(option) : arguments.index(option) + 2]
    assets = "FOVEATE_ASSETS=... " if "FOVEATE_ASSETS" in os.environ else ""
    return " ".join([f"{assets}python benchmarks/{Path(sys.argv[0]).name}", *arguments])
