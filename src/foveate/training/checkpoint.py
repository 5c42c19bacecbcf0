"""Checkpoints: everything a run needs to resume, in one safetensors file that is written atomically.

Reading one cannot execute code: tensors are safetensors, the rest is JSON in the file's header. A checkpoint is written
next to the old one, flushed to disk and then renamed, so that a crash at any moment leaves a valid one.

Random states are not stored: every random number of a run is drawn from (seed, step) or (seed, epoch, image), which a
resumed run knows.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn, optim

from foveate.files import force_to_disk, parse_json, remove_left_over, write_tensors
from foveate.methods.validation import shown_error

FORMAT, OLD_FORMATS = "foveate-checkpoint-3", ("foveate-checkpoint-1", "foveate-checkpoint-2")
CURRENT, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"
GROUPS = {"model": "objective", "moving average": "ema"}
"""The group of tensors that holds a part of a run."""


@dataclass(frozen=True)
class Checkpoint:
    """Groups of tensors by name, and plain values."""

    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any] = field(default_factory=dict)


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Make ``checkpoint`` the current one; the one before stays beside it."""
    current = directory / CURRENT
    flat = {f"{group}/{name}": t.detach() for group, named in checkpoint.tensors.items() for name, t in named.items()}
    flat = {name: tensor.cpu().contiguous().clone() for name, tensor in flat.items()}
    values = json.dumps(checkpoint.values)
    header = {"format": FORMAT, "values": values, "checksum": checksum_of(flat, values)}
    new = directory / f".{CURRENT}.new"
    write_tensors(new, flat, header)
    if current.exists():
        current.replace(directory / PREVIOUS)
    new.replace(current)
    force_to_disk(directory)
    remove_left_over(directory, f".*{re.escape(CURRENT)}.*")
    return current


def checksum_of(tensors: dict[str, Tensor], values: str) -> str:
    """Of every name, shape and byte, and of the plain values."""
    digest = hashlib.blake2b(values.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def find_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint: the current one, or the one before if a crash came between two renames."""
    return next((path for name in (CURRENT, PREVIOUS) if (path := directory / name).exists()), None)


def read_newest_checkpoint(directory: Path) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint that is whole; a damaged one is named in a warning. None where there is none at all.

    Raises:
        ValueError: if no checkpoint of the directory can be read.
    """
    path = find_checkpoint(directory)
    if path is None:
        return None
    try:
        return path, read_checkpoint(path)
    except DamagedCheckpoint as error:
        previous = directory / PREVIOUS
        if path == previous or not previous.exists():
            raise
        warnings.warn(f"{error} The run continues from {previous.name}, the checkpoint before.", stacklevel=2)
        return previous, read_checkpoint(previous)


class DamagedCheckpoint(ValueError):
    """A checkpoint that is not what was written."""


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Raise ``DamagedCheckpoint`` for anything in the checkpoint at ``path`` that a run does not expect."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedCheckpoint(
            f"{path} does not hold what this run needs: {type(error).__name__}: {shown_error(error)} "
            "Start again in another directory."
        ) from error


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that ``write_checkpoint`` wrote.

    Raises:
        DamagedCheckpoint: if the file is truncated or was changed.
        ValueError: if it is something else.
    """
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            _check_format(header, path)
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a safetensors handle is no dict
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpoint(f"{path} is truncated or not a checkpoint of foveate train ({error}).") from error
    values = header.get("values", "")
    if header.get("checksum") != checksum_of(flat, values):
        raise DamagedCheckpoint(f"{path} is damaged: its checksum does not fit its content.")
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in flat.items():
        group, _, key = name.partition("/")
        tensors.setdefault(group, {})[key] = tensor
    return Checkpoint(tensors, _plain_values(values, path))


def _plain_values(text: str, path: Path) -> dict[str, Any]:
    try:
        values = parse_json(text, path)
    except ValueError as error:
        raise DamagedCheckpoint(f"A part of {error}") from error
    if not isinstance(values, dict):
        raise DamagedCheckpoint(f"{path} is damaged: it holds no values by name.")
    return values


def read_values(path: Path) -> dict[str, Any] | None:
    """The plain values of a checkpoint, without its tensors and unverified; None if they cannot be read."""
    try:
        with safe_open(path, "pt") as file:
            return _plain_values((file.metadata() or {}).get("values", ""), path)
    except (SafetensorError, OSError, ValueError):
        return None


def _check_format(header: dict[str, str], path: Path) -> None:
    if header.get("format") in OLD_FORMATS:
        raise ValueError(
            f"{path} was written by an earlier foveate and such runs cannot be resumed. Start again in another "
            "directory, or finish the run with that version."
        )
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} is a safetensors file, but not a checkpoint of foveate train. Use another directory.")


def split_optimizer(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split the state of an optimizer into tensors and plain values."""
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
    """Invert ``split_optimizer``."""
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


def restore_(parts: Mapping[str, nn.Module | None], optimizer: optim.Optimizer, scaler: Any, found: Checkpoint) -> None:
    """Load the tensors of a checkpoint into the modules, the optimizer and the gradient scaler of a run."""
    for what, module in parts.items():
        if module is not None:
            load_strictly(module, found.tensors[GROUPS[what]], what)
    optimizer.load_state_dict(join_optimizer(found.tensors.get("optimizer", {}), found.values["optimizer"]))
    if scaler is not None and found.values["scaler"]:
        scaler.load_state_dict(found.values["scaler"])


def load_strictly(module: nn.Module, tensors: dict[str, Tensor], what: str) -> None:
    """Load ``tensors`` into ``module``.

    Raises:
        ValueError: If names or shapes differ. Nothing has changed then.
    """
    own = module.state_dict()
    wrong = [name for name in own if name not in tensors or tensors[name].shape != own[name].shape]
    if wrong or set(tensors) - set(own):
        extra = sorted(set(tensors) - set(own))
        raise ValueError(
            f"The checkpoint's {what} does not match: missing or other shape {wrong[:3]}, unexpected {extra[:3]}."
        )
    module.load_state_dict(tensors)
