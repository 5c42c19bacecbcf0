"""The progress callback of long-running work."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called repeatedly while comparing, timing, evaluating or training."""

    def __call__(self, phase: str, done: int, total: int | None, note: str = "") -> None:
        """Report progress.

        Args:
            phase: The current phase, such as ``decisions``.
            done: How much of it is done.
            total: How much there is to do; None if unknown. It may be an estimate that changes.
            note: Additional text, such as the loss of a training step.
        """


def silent(phase: str, done: int, total: int | None, note: str = "") -> None:
    """Report nothing."""
