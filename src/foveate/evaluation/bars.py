"""Progress on the screen: bars in a terminal, and in a notebook without its widgets."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from foveate.evaluation.progress import Progress, silent

SECONDS_BETWEEN_UPDATES = 0.2


@contextmanager
def shown_progress(progress: Progress | None) -> Iterator[Progress]:
    """Yield ``progress``, or, if it is None, what draws bars where somebody watches: in a terminal or a notebook."""
    if progress is not None:
        yield progress
    elif in_notebook():
        yield NotebookBar()
    elif sys.stderr.isatty():
        with terminal_bars() as advance:
            yield advance
    else:
        yield silent


@contextmanager
def terminal_bars() -> Iterator[Progress]:
    """A callback that draws a bar on stderr for each phase; they go when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    notes = TextColumn("{task.fields[note]}")
    with Bars(*columns, notes, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(phase: str, done: int, total: int | None, note: str = "") -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total, note=note)
            bars.update(tasks[phase], completed=done, total=total, note=note)

        yield advance


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this code."""
    shell = getattr(builtins, "get_ipython", None)
    return shell is not None and type(shell()).__name__ == "ZMQInteractiveShell"


class NotebookBar:
    """One line below the cell: the phase, a bar, and how much is done."""

    def __init__(self) -> None:
        self._line: Any = None
        self._drawn = 0.0

    def __call__(self, phase: str, done: int, total: int | None, note: str = "") -> None:
        finished = total is not None and done >= total
        if finished or time.monotonic() - self._drawn >= SECONDS_BETWEEN_UPDATES:
            self._drawn = time.monotonic()
            self._show(as_html(phase, done, total, note))

    def _show(self, html: str) -> None:
        from IPython.display import display  # there, since a kernel runs

        content = {"text/html": html, "text/plain": ""}
        if self._line is None:
            self._line = display(content, raw=True, display_id=True)
        else:
            self._line.update(content, raw=True)


def as_html(phase: str, done: int, total: int | None, note: str = "") -> str:
    """Return a bar with words beside it."""
    bar = "<progress>" if total is None else f'<progress value="{done}" max="{max(total, 1)}">'
    amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    return f"{bar}</progress> {escape(phase)}: {', '.join(filter(None, (amount, escape(note))))}"
