"""What a run says while it runs: a bar for people, TensorBoard for curves; and how it is told to stop."""

from __future__ import annotations

import signal
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY_SECONDS = 60.0
"""How often a line is printed where there is no terminal to draw a bar on."""


class Stopper:
    """Remembers that somebody asked to stop: SIGTERM from a scheduler, Ctrl-C from a person."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[Stopper]:
        """Take these signals while a run goes on; a second Ctrl-C stops at once."""
        before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: types.FrameType | None) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def told(self) -> bool:
        return self.signal is not None


class Reporter:
    """Loss, learning rate, images per second and time left: on a bar or in lines, unless ``quiet``; ``curves`` for
    TensorBoard.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False, curves: bool = True) -> None:
        self.console, self.quiet, self.curves = console or Console(stderr=True), quiet, curves
        self.bar: Progress | None = None
        self.board: Any = None
        self._began = self._said = time.monotonic()
        self._images = 0

    @contextmanager
    def running(self, directory: Path, step: int, steps: int) -> Iterator[None]:
        """While a run goes on from ``step`` to ``steps``."""
        self.board = _tensorboard(directory, step) if self.curves else None
        self._began = time.monotonic()
        try:
            if self.quiet or not self.console.is_terminal:
                yield
            else:
                with self._bar_of(step, steps):
                    yield
        finally:
            if self.board is not None:
                self.board.close()

    @contextmanager
    def _bar_of(self, step: int, steps: int) -> Iterator[None]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[words]}"), console=self.console) as self.bar:
            self.task = self.bar.add_task("steps", total=steps, completed=step, words="")
            yield
        self.bar = None

    def say(self, words: str) -> None:
        if not self.quiet:
            self.console.print(words, highlight=False)

    def images(self, number: int) -> None:
        """So many more images have been trained on, in one step."""
        self._images += number
        if self.bar is not None:
            self.bar.advance(self.task)

    def step(self, step: int, losses: dict[str, float], rate: float) -> None:
        words = f"loss {sum(losses.values()):.4f}  lr {rate:.2e}  {self._pace():.1f} img/s"
        if self.bar is not None:
            self.bar.update(self.task, words=words)
        elif not self.quiet and time.monotonic() - self._said > EVERY_SECONDS:
            self._said = time.monotonic()
            self.say(f"step {step}  {words}")
        if self.board is not None:
            for name, value in {**losses, "lr": rate}.items():
                self.board.add_scalar(f"train/{name}", value, step)

    def evaluated(self, images: int) -> None:
        """So many images of an evaluation are done."""
        if self.bar is not None:
            self.bar.update(self.task, words=f"evaluated {images} images")

    def _pace(self) -> float:
        return self._images / max(time.monotonic() - self._began, 1e-9)

    def pace(self) -> dict[str, float]:
        """Speed of the epoch that ends now, and a new beginning."""
        seconds = time.monotonic() - self._began
        found = {"seconds": round(seconds, 2), "images_per_second": round(self._pace(), 2)}
        self._began, self._images = time.monotonic(), 0
        return found

    def epoch(self, line: dict[str, Any]) -> None:
        if self.board is not None:
            for name, value in line.get("val", {}).items():
                self.board.add_scalar(f"val/{name}", value, line["step"])
        if not self.quiet:
            parts = [f"{name} {value:.4g}" for name, value in line["train"].items()]
            parts += [f"val {name} {value:.4g}" for name, value in line.get("val", {}).items() if name != "images"]
            words = f"epoch {line['epoch']}: {', '.join(parts)}; {line['images_per_second']:.1f} img/s"
            self.say(words)
        self._began = time.monotonic()


def _tensorboard(directory: Path, step: int) -> Any:
    """A writer that forgets what a killed run wrote after its last checkpoint; None without tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1)
