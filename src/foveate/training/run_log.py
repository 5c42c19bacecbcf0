"""Output of a training run: progress, log lines, and TensorBoard curves."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foveate.evaluation.progress import Progress, silent
from foveate.training.announcing import in_words

logger = logging.getLogger("foveate")
ESTIMATE_SECONDS, ESTIMATE_STEPS = 5.0, 3
"""How long the first steps are timed before the whole is estimated."""


class RunLog:
    """Reports loss, learning rate and images per second to ``progress``, the log, and TensorBoard (``curves``).

    Every process has one, to measure its speed; only the main process reports.
    """

    def __init__(self, progress: Progress | None = None, curves: bool = False, main: bool = True) -> None:
        self.progress = progress if progress is not None and main else silent
        self.curves, self.main = curves and main, main
        self._board: Any = None
        self._began = time.monotonic()
        self._images = self._step = self._steps = 0
        self._note = ""
        self._first: tuple[float, int] | None = None  # when the first step of this process ended, and its number
        self._estimated = False

    @contextmanager
    def running(self, directory: Path, step: int, steps: int) -> Iterator[None]:
        """Context of a run from ``step`` to ``steps``."""
        self._board = _tensorboard(directory, step) if self.curves else None
        self._began, self._step, self._steps = time.monotonic(), step, steps
        try:
            yield
        finally:
            if self._board is not None:
                self._board.close()

    def info(self, text: str) -> None:
        """Log a line, in the main process only."""
        if self.main:
            logger.info(text)

    def step_done(self, images: int) -> None:
        """Record a finished step of ``images`` images."""
        self._images += images
        self._step += 1
        self._estimate()
        self.progress("steps", self._step, self._steps, self._note)

    def _estimate(self) -> None:
        """Tell once how long the run will take. The first step does not count: it starts workers and kernels."""
        if self._estimated:
            return
        now = time.monotonic()
        if self._first is None:
            self._first = now, self._step
            return
        seconds, steps = now - self._first[0], self._step - self._first[1]
        if seconds >= ESTIMATE_SECONDS and steps >= ESTIMATE_STEPS:
            self._estimated = True
            left = seconds / steps * (self._steps - self._step)
            self.info(
                f"Estimated time: {in_words(left)}, at {steps / seconds:.2g} steps a second, without evaluations."
            )

    def losses(self, step: int, losses: dict[str, float], lr: float) -> None:
        """Record the losses and the learning rate of a step."""
        self._note = f"loss {sum(losses.values()):.4f}  lr {lr:.2e}  {self._pace():.1f} img/s"
        if self._board is not None:
            for name, value in {**losses, "lr": lr}.items():
                self._board.add_scalar(f"train/{name}", value, step)

    def evaluated(self, images: int, total: int | None) -> None:
        """Report the progress of an evaluation."""
        self.progress("evaluation", images, total)

    def _pace(self) -> float:
        return self._images / max(time.monotonic() - self._began, 1e-9)

    def pace(self) -> dict[str, float]:
        """Return the duration and speed of the epoch that ends now, and start the next."""
        seconds = time.monotonic() - self._began
        found = {"seconds": round(seconds, 2), "images_per_second": round(self._pace(), 2)}
        self._began, self._images = time.monotonic(), 0
        return found

    def epoch(self, line: dict[str, Any]) -> None:
        """Log a finished epoch; ``line`` is its entry in log.jsonl."""
        if self._board is not None:
            for name, value in line.get("val", {}).items():
                self._board.add_scalar(f"val/{name}", value, line["step"])
        parts = [f"{name} {value:.4g}" for name, value in line["train"].items()]
        parts += [f"val {name} {value:.4g}" for name, value in line.get("val", {}).items() if name != "images"]
        self.info(f"epoch {line['epoch']}: {', '.join(parts)}; {line['images_per_second']:.1f} img/s")
        self._began = time.monotonic()  # evaluation time does not count


def _tensorboard(directory: Path, step: int) -> Any:
    """Return a writer that discards what a killed run wrote after its last checkpoint; None without tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1)
