"""Count broken images: warn about each once, and stop the run if there are too many."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from foveate.data.images import BrokenImage, DataError
from foveate.data.labels import first_few

A_FEW = 3
"""Broken images that a small set may have whatever the share, unless the share is 0 or they are over a fifth of it."""
FEWEST_SEEN = 1000
"""Images to see in a stream of unknown length before the share of broken ones is checked."""


class BrokenCount:
    """Distinct broken images of one loader, over all its epochs.

    If the number of images is known, the limit is a share of all of them, so that one broken image in the first batch
    of a large set does not stop the run. One of 81 does not either: the limit is the larger of the share and a few.
    """

    def __init__(self, limit: float, total: int | None, consequence: str) -> None:
        self.limit = limit
        self.total = total
        self.consequence = consequence
        self.reasons: dict[str, str] = {}
        self.seen = 0

    def begin(self) -> None:
        """Start a new epoch, which shows the same images again."""
        self.seen = 0

    def add(self, images: int, broken: Iterable[BrokenImage]) -> None:
        """Record one batch: warn about new broken images, and raise ``DataError`` if there are too many."""
        new = {image.name: image.reason for image in broken if image.name not in self.reasons}
        self.reasons.update(new)
        self.seen += images + len(new)
        for name, reason in new.items():
            warnings.warn(f"{name} cannot be read and {self.consequence}: {reason}", stacklevel=3)
        self._check(self.total or max(self.seen, FEWEST_SEEN))

    def finish(self) -> None:
        """End an epoch, after which the number of images of a stream is known."""
        if self.total is None:
            self._check(self.seen)

    def allowed(self, total: int) -> float:
        """The most broken images that ``total`` images may have."""
        return max(self.limit * total, min(A_FEW, total // 5) if self.limit else 0)

    def _check(self, total: int) -> None:
        if len(self.reasons) > self.allowed(total):
            why = next(iter(self.reasons.values()))
            raise DataError(
                f"{len(self.reasons)} broken images of {total} are more than max_broken={self.limit:g} allows: "
                f"{first_few(self.reasons)} (the first: {why}). Repair or remove them, or raise max_broken."
            )
