"""Printing for all commands: tables and JSON to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from foveate.evaluation.bars import terminal_bars
from foveate.evaluation.progress import Progress

UNBOUNDED = 1000  # width in a file or a pipe, where nothing needs to wrap
NARROWEST_TEXT = 12  # width of a column whose text wraps
EVERY_SECONDS = 60.0  # between lines of progress in a file or a pipe; short commands print none


class PipeAwareConsole(Console):
    """A console that lets ``main`` handle a closed pipe instead of exiting."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The console of stdout, created on each call so that redirection works."""
    width = None if sys.stdout.isatty() else UNBOUNDED
    return PipeAwareConsole(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """Print one paragraph to stdout."""
    console().print(text)


def print_json(document: object) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(document, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[str]) -> None:
    """Print a table. All columns but ``text_columns`` hold numbers, which are aligned right and never cut."""
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
    target.width = max(target.width, needed)  # on a narrow terminal lines wrap instead of being cut
    target.print(table, crop=False)


def print_listing(noun: str, entries: Mapping[str, str], as_json: bool) -> None:
    """Print names with one line each, or as JSON."""
    if as_json:
        print_json([{"name": name, "description": text} for name, text in entries.items()])
    elif not entries:
        say(f"No {noun} yet.")
    else:
        print_table(noun, ("name", "description"), list(entries.items()), ("name", "description"))


def plain_warnings() -> None:
    """Print warnings as one line of this command, without the source line that Python adds."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"foveate: warning: {' '.join(str(message).split())}", file=sys.stderr, flush=True)

    warnings.showwarning = show


@contextmanager
def phases() -> Iterator[Progress]:
    """A callback that draws a bar on stderr for each phase, or prints a line per minute if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield LINES.advance
        return
    with terminal_bars() as advance:
        yield advance


@contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """``phases`` for work with a single phase called ``label``."""
    with phases() as advance:
        yield lambda phase, done, total, note="": advance(label, done, total, note)


class LogToStderr(logging.Handler):
    """Prints log messages of foveate, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=sys.stderr, flush=True)  # looked up now, because a bar redirects it


@contextmanager
def logged_to_stderr(level: int = logging.INFO) -> Iterator[None]:
    """Show log messages of foveate while a command runs."""
    logger, handler = logging.getLogger("foveate"), LogToStderr()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class ProgressLines:
    """Progress as lines, for log files."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start timing a command."""
        self._printed = time.monotonic()

    def advance(self, phase: str, done: int, total: int | None, note: str = "") -> None:
        if time.monotonic() - self._printed >= EVERY_SECONDS:
            self._printed = time.monotonic()
            line = f"foveate: {phase}: {done}{'' if total is None else f' of {total}'}{f'  {note}' if note else ''}"
            print(line, file=sys.stderr, flush=True)


LINES = ProgressLines()  # one for the whole command, because many short phases would never print otherwise


def run_lengths(values: Sequence[int]) -> str:
    """``197x3 140x3 100``: equal neighbors written once."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return " ".join(str(value) if times == 1 else f"{value}x{times}" for value, times in runs)
