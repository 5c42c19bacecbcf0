"""Save a model with the way it is reduced, and load it again: weights in safetensors, the rest in JSON."""

from __future__ import annotations

import json
import os
import re
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foveate.adapters import CHILD, Family, inspect, rebuild
from foveate.reductions import Reduction
from foveate.schedules import PlanError, Schedule, schedule_from_dict, schedule_to_dict

MANIFEST = "foveate.json"
FORMAT = 1
MANIFEST_FORMATS = (1, 2)
"""Formats of the manifest that are read; the last is written. Format 1 is foveate 0.1's."""
WEIGHTS = re.compile(r"model-[0-9a-f]{8}\.safetensors")  # not those of others: model-00001-of-00002.safetensors
TEMPORARY = re.compile(re.escape(f".{MANIFEST}") + r"-[0-9a-f]{8}\.tmp")


def save(model: nn.Module, directory: str | os.PathLike[str]) -> Path:
    """Write ``model`` to ``directory``: weights, architecture, method, schedule and options.

    The manifest is replaced last and in one step, and names the weights it belongs to, so that a crash leaves the
    old save or the new one. Where the architecture cannot be rebuilt from plain data (a model built by hand), a
    warning says so, and ``load`` will ask for an untrained model of that shape.
    """
    family = inspect(model)
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; save needs a directory.")
    if folder.is_dir() and not (folder / MANIFEST).is_file() and not all(map(_is_left_over, folder.iterdir())):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}. Give an empty or a new directory.")
    _check_depth(family)
    reduction = family.reduction.to_dict()
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"model-{secrets.token_hex(4)}.safetensors"
    manifest = {
        "format": MANIFEST_FORMATS[-1],
        "weights": weights.name,
        "model": _checked_architecture(family),
        "reduction": reduction,
    }
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()}
    write_tensors(weights, tensors)  # before the manifest that names them
    write_text(folder / MANIFEST, json.dumps(manifest, indent=2))
    for old in folder.iterdir():
        if old != weights and WEIGHTS.fullmatch(old.name):
            old.unlink()
    return folder


def _is_left_over(path: Path) -> bool:
    """Whether a save that was killed before its manifest wrote this file."""
    return bool(WEIGHTS.fullmatch(path.name) or TEMPORARY.fullmatch(path.name))


def load(directory: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """The model that ``save`` wrote, in evaluation mode.

    ``model`` is needed only where the architecture could not be saved: an unreduced model of the same shape, which
    is filled in place.
    """
    folder = Path(directory)
    manifest = _read_manifest(folder)
    reduction = Reduction.from_dict(manifest.get("reduction"))
    if model is None:
        model = _rebuild(manifest.get("model"), folder)
    reduction.apply_(model)
    _fill(model, folder / manifest["weights"])
    return model.eval()


def save_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> Path:
    """Write a schedule to a JSON file, for example ``Keep(found_counts(model))`` after a search."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"format": FORMAT, "schedule": schedule_to_dict(schedule)}, indent=2) + "\n")
    return file


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """The schedule that ``save_schedule`` wrote."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"There is no file {file}.")
    data = read_json(file)
    try:
        return schedule_from_dict(data.get("schedule"))  # type: ignore[arg-type]
    except PlanError as error:
        raise ValueError(f"{file} does not hold a schedule written by foveate.save_schedule. {error}") from error


def _check_depth(family: Family) -> None:
    """Refuse a model that lost blocks after it was reduced: nothing stored could describe it."""
    reducer = family.reducer
    if reducer is not None and len(family.blocks) != reducer.shape.depth:
        raise ValueError(
            f"This model was reduced with {reducer.shape.depth} blocks and has {len(family.blocks)} left, which a save "
            "cannot describe. Save it before it is pruned."
        )


def _checked_architecture(family: Family) -> dict[str, Any] | None:
    """The architecture, if a model rebuilt from it is indeed the same one."""
    architecture = family.architecture()
    if architecture is not None:
        architecture = json.loads(json.dumps(architecture, default=str))
        try:
            same = _fingerprint(family.rebuild(architecture)) == _fingerprint(family.model)
        except (AssertionError, RuntimeError, TypeError, ValueError):
            same = False  # an option this architecture does not take
        if same:
            return architecture
    warnings.warn(
        "This model's architecture cannot be rebuilt from plain data; load(directory, model=...) will need an "
        "unreduced model of the same shape.",
        stacklevel=3,
    )
    return None


def _fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """What must agree for weights to mean the same: every part as printed, and every tensor's shape."""
    parts = [(name, repr(child)) for name, child in model.named_children() if name != CHILD]
    shapes = [(k, tuple(v.shape)) for k, v in model.state_dict().items() if not k.startswith(f"{CHILD}.")]
    return parts, shapes


def _rebuild(architecture: dict[str, Any] | None, folder: Path) -> nn.Module:
    if architecture is None:
        raise ValueError(f"{folder} does not hold the model's architecture. Call load({str(folder)!r}, model=...).")
    return rebuild(architecture)


def _fill(model: nn.Module, weights: Path) -> None:
    if not weights.is_file():
        raise ValueError(f"{weights.parent} names the weights {weights.name}, which are not there. Save it again.")
    try:
        tensors = load_file(weights)
    except Exception as error:  # safetensors raises its own kinds for truncated or foreign files
        raise ValueError(f"{weights} is not a readable safetensors file: {error}") from error
    missing, unexpected = set(model.state_dict()) - set(tensors), set(tensors) - set(model.state_dict())
    if missing or unexpected:
        raise ValueError(
            f"The weights in {weights} do not fit the model: missing {sorted(missing)[:5]}, "
            f"unexpected {sorted(unexpected)[:5]}."
        )
    device = next(model.parameters()).device
    try:  # assign keeps the dtype that was saved
        model.load_state_dict({k: v.to(device) for k, v in tensors.items()}, assign=True)
    except RuntimeError as error:  # torch names the tensors and both their shapes
        raise ValueError(f"The weights in {weights} do not fit the model. {error}") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} has no {MANIFEST}, so it was not written by foveate.save.")
    manifest = read_json(path, MANIFEST_FORMATS)
    if Path(str(manifest.get("weights"))).name != manifest.get("weights"):
        raise ValueError(f"{path} points outside its own directory: {manifest.get('weights')!r}.")
    return manifest


def read_json(path: Path, formats: Sequence[int] = (FORMAT,)) -> dict[str, Any]:
    """What a file of ours holds; anything that is not of one of these formats is refused."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error
    found = data.get("format") if isinstance(data, dict) else None
    if isinstance(found, bool) or found not in formats:
        raise ValueError(f"{path} has format {found!r}; this foveate reads {', '.join(map(str, formats))}.")
    return dict(data)


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: all of it or nothing, also when the machine goes down."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")  # a name no file of the user's has
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> None:
    """A safetensors file that is on the disk, and that those may read who may read any new file of this user's."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, header)  # leaves a file that nobody else may read
    path.chmod(mode)
    force_to_disk(path)


def force_to_disk(path: Path) -> None:
    """Wait until a file, or which files a folder holds, would outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
