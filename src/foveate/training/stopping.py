"""How a run is stopped from outside."""

from __future__ import annotations

import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager


class StopSignal:
    """Remembers that somebody wants the run to stop: SIGTERM from a scheduler, Ctrl-C from a person."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[StopSignal]:
        """Catch these signals while a run goes on; a second Ctrl-C stops at once."""
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
        return self.signal is not None
