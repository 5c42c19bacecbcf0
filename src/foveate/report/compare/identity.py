"""What must be the same in a resumed run: weights, and candidates."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from foveate.report.compare.candidates import Candidate


def identity_of(candidate: Candidate) -> list[Any]:
    """Identify a candidate; only learned ones have their own weights."""
    own = weights_fingerprint(candidate.model) if candidate.kind == "learned" else ""
    return [candidate.key, list(candidate.counts), own]


def weights_fingerprint(model: nn.Module) -> str:
    """Return a hash of all weights."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
