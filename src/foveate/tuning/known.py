"""Measurements of a search in a file, so that it can be resumed, and other constraints need not measure them again."""

from __future__ import annotations

import hashlib
import json
import time
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from foveate.files import FORMAT, check_writable, read_json, sealed, unsealed, write_text
from foveate.reductions import Reduction
from foveate.tasks import Task
from foveate.tuning.constraints import Quality
from foveate.tuning.judging import Judge, Judged

SECONDS_BETWEEN_WRITES = 2.0
VERSION = 2
"""Version of the stored form; the first had no distances and no number."""
AGAIN = "Use another file to measure anew."


class Known:
    """What settings of one model did on the same images, by setting and number of images."""

    def __init__(self, path: str | PathLike[str], model: nn.Module, images: Tensor, quality: str) -> None:
        """Read the file if there is one.

        Raises:
            ValueError: if it is damaged, or belongs to another model, other images or another quality.
        """
        self.path, self.identity = Path(path), f"{fingerprint(model, images)} {quality}"
        self.found: dict[str, Judged] = {}
        self.written_at = 0.0
        if not self.path.exists():
            check_writable(self.path.parent)
            return
        stored = unsealed(read_json(self.path), self.path, AGAIN)
        if stored.get("version") != VERSION:
            raise ValueError(f"{self.path} was written by another version of foveate. {AGAIN}")
        if stored.get("identity") != self.identity:
            raise ValueError(
                f"{self.path} has measurements of another model or of other images, or of another quality. {AGAIN}"
            )
        try:
            self.found = {key: Judged(*values) for key, values in stored["measured"].items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is damaged: {error}. {AGAIN}") from error

    def get(self, reduction: Reduction, limit: int | None) -> Judged | None:
        return self.found.get(_key(reduction, limit))

    def put(self, reduction: Reduction, limit: int | None, judged: Judged) -> None:
        """Remember a measurement; the file follows within seconds."""
        self.found[_key(reduction, limit)] = judged
        if time.monotonic() - self.written_at > SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        """Write everything in one step."""
        measured = {key: list(judged) for key, judged in self.found.items()}
        content = sealed({"format": FORMAT, "version": VERSION, "identity": self.identity, "measured": measured})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(content))
        self.written_at = time.monotonic()


class RememberingJudge(Judge):
    """A judge that does not measure twice what is known."""

    def __init__(
        self, model: nn.Module, images: Tensor, task: Task, quality: Quality | None, known: Known | None
    ) -> None:
        super().__init__(model, images, task, quality)
        self.known = known

    def judge(self, reduction: Reduction, limit: int | None = None) -> Judged:
        earlier = None if self.known is None else self.known.get(reduction, limit)
        if earlier is not None:
            return earlier
        judged = super().judge(reduction, limit)
        if self.known is not None:
            self.known.put(reduction, limit, judged)
        return judged


def _key(reduction: Reduction, limit: int | None) -> str:
    return f"{limit or 'all'} {json.dumps(reduction.to_dict(), sort_keys=True)}"


def fingerprint(model: nn.Module, images: Tensor) -> str:
    """A hash of all weights and pixels."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (*model.state_dict().values(), images):
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(str((flat.dtype, tuple(tensor.shape))).encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
