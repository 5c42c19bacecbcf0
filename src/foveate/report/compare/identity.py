"""What a model is: in words for a report, and as what must be the same in a resumed run."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from foveate.adapters import inspect
from foveate.api import cost
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


def described(model: nn.Module, name: str) -> dict[str, Any]:
    """Return what a report says of the unreduced model."""
    family, costs = inspect(model), cost(model)
    return {
        "name": name,
        "params": costs.params,
        "macs": costs.macs,
        "image_size": list(family.image_size),
        "grid": list(family.grid),
        "blocks": len(family.blocks),
        "prefix": family.num_prefix,
        "num_classes": family.num_classes,
        "weights": "as given in Python",
        "fingerprint": weights_fingerprint(model),
    }
