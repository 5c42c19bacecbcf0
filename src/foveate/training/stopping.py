"""Stopping a run by a signal."""

from __future__ import annotations

import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager


class StopSignal:
    """Records a request to stop: SIGTERM from a scheduler, or Ctrl-C."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[StopSignal]:
        """Catch these signals inside the context; a second Ctrl-C stops at once."""
        before = {number: signal.signal(number, self._catch) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _catch(self, number: int, frame: types.FrameType | None) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def requested(self) -> bool:
        """Whether a signal was caught."""
        return self.signal is not None
