"""How every command prints: tables and JSON to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from foveate.report.speed import Progress as ReportProgress

UNBOUNDED = 1000  # columns of a file or a pipe, where nothing needs to wrap
NARROWEST_TEXT = 12  # columns of a text that wraps


class PipeAwareConsole(Console):
    """A console that leaves a closed pipe to ``main`` instead of exiting by itself."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The console of stdout, looked up now, so that redirection works."""
    width = None if sys.stdout.isatty() else UNBOUNDED
    return PipeAwareConsole(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """Print one paragraph to stdout."""
    console().print(text)


def print_json(document: object) -> None:
    """Print one JSON document, and nothing else."""
    print(json.dumps(document, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[str]) -> None:
    """Print a table; all columns but ``text_columns`` hold numbers, which are aligned right and never cut."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        width = max(len(line) for cell in (name, *(row[index] for row in rows)) for line in cell.split("\n"))
        if name in text_columns:
            table.add_column(name, overflow="fold", min_width=min(width, NARROWEST_TEXT))
        else:
            table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*row)
    target = console()
    needed = Measurement.get(target, target.options.update_width(UNBOUNDED), table).minimum
    target.width = max(target.width, needed)  # on a very narrow terminal lines wrap, instead of losing their ends
    target.print(table, crop=False)


def print_listing(noun: str, entries: Mapping[str, str], as_json: bool) -> None:
    """Names with one line each, of a registry that may still be empty."""
    if as_json:
        print_json([{"name": name, "description": text} for name, text in entries.items()])
    elif not entries:
        say(f"No {noun} yet.")
    else:
        print_table(noun, ("name", "description"), list(entries.items()), ("name", "description"))


@contextmanager
def progress_bar(label: str) -> Iterator[ReportProgress | None]:
    """A callback that draws progress on stderr; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def run_lengths(values: Sequence[int]) -> str:
    """``197x3 140x3 100``: equal neighbours written once."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return " ".join(str(value) if times == 1 else f"{value}x{times}" for value, times in runs)
