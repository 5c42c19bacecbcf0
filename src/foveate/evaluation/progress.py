"""How long work reports how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called again and again while comparing, timing, evaluating or training."""

    def __call__(self, phase: str, done: int, total: int | None, note: str = "") -> None:
        """Report progress.

        Args:
            phase: What is being done, such as ``decisions``.
            done: How much of it is done.
            total: How much there is; None if that is not known. It may be an estimate that changes.
            note: What else to show, such as the loss of a training step.
        """


def silent(phase: str, done: int, total: int | None, note: str = "") -> None:
    """Report nothing."""
