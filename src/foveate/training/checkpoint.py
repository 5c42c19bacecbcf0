"""Checkpoints: everything a run needs to go on, in one safetensors file that is either whole or not there.

Nothing here can execute code: tensors are safetensors, the rest is JSON in the file's header. A checkpoint is written
beside the old one, forced to disk and then renamed, so that a crash at any moment leaves a good one.

Random states are not among what is kept: every random number of a run is drawn from (seed, step) or
(seed, epoch, image), which a resumed run knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveate.storage import force_to_disk, write_tensors

FORMAT, OLD_FORMATS = "foveate-checkpoint-2", ("foveate-checkpoint-1",)
CURRENT, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Groups of tensors by name, and plain values."""

    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any] = field(default_factory=dict)


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Make ``checkpoint`` the current one; the one before stays beside it."""
    current, temporary = directory / CURRENT, directory / f".{CURRENT}.tmp"
    flat = {f"{group}/{name}": t.detach() for group, named in checkpoint.tensors.items() for name, t in named.items()}
    header = {"format": FORMAT, "values": json.dumps(checkpoint.values)}
    write_tensors(temporary, {name: tensor.cpu().contiguous().clone() for name, tensor in flat.items()}, header)
    if current.exists():
        current.replace(directory / PREVIOUS)
    temporary.replace(current)
    force_to_disk(directory)
    return current


def find_checkpoint(directory: Path) -> Path | None:
    """The newest whole checkpoint: the current one, or the one before where a crash came between two renames."""
    return next((path for name in (CURRENT, PREVIOUS) if (path := directory / name).exists()), None)


def read_checkpoint(path: Path) -> Checkpoint:
    """What ``write_checkpoint`` wrote; anything else is refused, unread."""
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            if header.get("format") in OLD_FORMATS:
                raise ValueError(
                    f"{path} was written by foveate 0.1 and such runs cannot be resumed. Start again in another "
                    "directory, or finish the run with foveate 0.1."
                )
            if header.get("format") != FORMAT:
                raise ValueError(
                    f"{path} is a safetensors file, but not a checkpoint of foveate train.{_way_out(path)}"
                )
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a safetensors handle is no dict
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is truncated or not a checkpoint of foveate train ({error}).{_way_out(path)}"
        ) from error
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in flat.items():
        group, _, key = name.partition("/")
        tensors.setdefault(group, {})[key] = tensor
    return Checkpoint(tensors, json.loads(header["values"]))


def _way_out(path: Path) -> str:
    previous = path.with_name(PREVIOUS)
    if path.name == CURRENT and previous.exists():
        return f" The one before it is whole perhaps: delete {path.name} to go on from {PREVIOUS}."
    return " Start again in another directory."


def split_optimizer(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as tensors and plain values."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            (tensors if isinstance(value, Tensor) else numbers)[f"{index}/{name}"] = value
    groups = [dict(group) for group in state["param_groups"]]
    for number, group in enumerate(groups):
        for name in [name for name, value in group.items() if isinstance(value, Tensor)]:
            tensors[f"group/{number}/{name}"] = group.pop(name)  # some optimizers count their steps there
    return tensors, {"numbers": numbers, "groups": groups}


def join_optimizer(tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of ``split_optimizer``."""
    state: dict[int, dict[str, Any]] = {}
    groups = [dict(group) for group in values["groups"]]
    for path, value in {**tensors, **values["numbers"]}.items():
        index, _, name = path.partition("/")
        if index == "group":
            number, _, name = name.partition("/")
            groups[int(number)][name] = value
        else:
            state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": groups}


def load_strictly(module: torch.nn.Module, tensors: dict[str, Tensor], what: str) -> None:
    """Fill ``module``; a checkpoint of another model is refused before anything changes."""
    own = module.state_dict()
    wrong = [name for name in own if name not in tensors or tensors[name].shape != own[name].shape]
    if wrong or set(tensors) - set(own):
        extra = sorted(set(tensors) - set(own))
        raise ValueError(f"The checkpoint's {what} does not fit: differing {wrong[:3]}, unknown {extra[:3]}.")
    module.load_state_dict(tensors)
