"""Counting broken images: each is named once, and too many stop the run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from foveate.data.images import BrokenImage, DataError
from foveate.data.labels import first_few

FEWEST_SEEN = 1000
"""Images a stream of unknown length must have shown before a share of them means anything."""


class BrokenCount:
    """Distinct broken images of one loader, over all its epochs.

    Where the number of images is known, the limit is a share of that: one broken image in the first batch of a large
    set is no reason to stop.
    """

    def __init__(self, limit: float, total: int | None, consequence: str) -> None:
        self.limit = limit
        self.total = total
        self.consequence = consequence
        self.reasons: dict[str, str] = {}
        self.seen = 0

    def begin(self) -> None:
        """A new epoch shows the same images again."""
        self.seen = 0

    def add(self, images: int, broken: Iterable[BrokenImage]) -> None:
        """Note one batch: warn of what is new, and stop where it is too much."""
        new = {image.name: image.reason for image in broken if image.name not in self.reasons}
        self.reasons.update(new)
        self.seen += images + len(new)
        for name, reason in new.items():
            warnings.warn(f"{name} cannot be read and {self.consequence}: {reason}", stacklevel=3)
        self._check(self.total or max(self.seen, FEWEST_SEEN))

    def finish(self) -> None:
        """At the end of an epoch a stream has shown how many images there are."""
        if self.total is None:
            self._check(self.seen)

    def _check(self, total: int) -> None:
        if len(self.reasons) > self.limit * total:
            raise DataError(
                f"{len(self.reasons)} broken images of {total} are more than max_broken={self.limit:g} allows: "
                f"{first_few(self.reasons)}. Mend or remove them, or raise max_broken."
            )
