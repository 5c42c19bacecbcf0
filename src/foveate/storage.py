"""Save a model with the way it is reduced, and load it again: weights in safetensors, the rest in JSON."""

from __future__ import annotations

import json
import os
import re
import secrets
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foveate.adapters import CHILD, Keeper, find_keeper, keeper_for, reduction_of
from foveate.api import reduce_, restore_
from foveate.methods.options import build, describe
from foveate.schedule import OwnCounts, PlanError, Schedule, build_schedule, describe_schedule

MANIFEST = "foveate.json"
FORMAT = 1
WEIGHTS = re.compile(r"model-[0-9a-f]{8}\.safetensors")  # not those of others: model-00001-of-00002.safetensors
TEMPORARY = re.compile(re.escape(f".{MANIFEST}") + r"-[0-9a-f]{8}\.tmp")


def save(model: nn.Module, directory: str | os.PathLike[str]) -> Path:
    """Write ``model`` to ``directory``: weights, architecture, method, schedule and options.

    The manifest is replaced last and in one step, and names the weights it belongs to, so that a crash leaves the
    old save or the new one. Where the architecture cannot be rebuilt from plain data (a model built by hand), a
    warning says so, and ``load`` will ask for an untrained model of that shape.
    """
    keeper = find_keeper(model)
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; save needs a directory.")
    if folder.is_dir() and not (folder / MANIFEST).is_file() and not all(map(_is_left_over, folder.iterdir())):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}. Give an empty or a new directory.")
    how = _how(keeper, model)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"model-{secrets.token_hex(4)}.safetensors"
    manifest = {"format": FORMAT, "weights": weights.name, "model": _checked_recipe(keeper, model), **how}
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
    if model is None:
        model = _rebuild(manifest.get("model"), folder)
    reduction = manifest["reduction"]
    if reduction is not None:
        schedule = build_schedule(reduction["schedule"])
        method = build(reduction["method"]["name"], reduction["method"]["options"])
        own = isinstance(schedule, OwnCounts)
        options = {name: reduction[name] for name in ("exact_last_block", "unit_qk") if name in reduction}
        reduce_(model, method, None if own else schedule, **options)
    _fill(model, folder / manifest["weights"])
    return model.eval()


def save_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> Path:
    """Write a schedule to a JSON file, for example ``Keep(found_counts(model))`` after a search."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"format": FORMAT, "schedule": describe_schedule(schedule)}, indent=2) + "\n")
    return file


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """The schedule that ``save_schedule`` wrote."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"There is no file {file}.")
    data = read_json(file)
    try:
        return build_schedule(dict(data["schedule"]))
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not hold a schedule written by foveate.save_schedule.") from error


def _how(keeper: Keeper, model: nn.Module) -> dict[str, Any]:
    reduction = reduction_of(model)
    if reduction is None:
        return {"reduction": None}
    blocks = len(keeper.blocks(model))
    if blocks != reduction.shape.depth:
        raise ValueError(
            f"This model was reduced with {reduction.shape.depth} blocks and has {blocks} left, which a save cannot "
            "say. Save it before it is pruned."
        )
    return {
        "reduction": {
            "method": describe(reduction.method),
            "schedule": describe_schedule(reduction.schedule),
            "exact_last_block": reduction.exact_last_block,
            "unit_qk": reduction.unit_qk,
        }
    }


def _checked_recipe(keeper: Keeper, model: nn.Module) -> dict[str, Any] | None:
    """The recipe, if a model rebuilt from it is indeed the same one."""
    recipe = keeper.recipe(model)
    if recipe is not None:
        recipe = json.loads(json.dumps(recipe, default=str))
        try:
            same = _fingerprint(_unreduced(keeper.rebuild(recipe))) == _fingerprint(model)
        except (AssertionError, RuntimeError, TypeError, ValueError):
            same = False  # an option this architecture does not take
        if same:
            return recipe
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


def _rebuild(recipe: dict[str, Any] | None, folder: Path) -> nn.Module:
    if recipe is None:
        raise ValueError(f"{folder} does not hold the model's architecture. Call load({str(folder)!r}, model=...).")
    return _unreduced(keeper_for(recipe["library"]).rebuild(recipe))


def _unreduced(model: nn.Module) -> nn.Module:
    """Some architectures are reduced as they are built (HVT); the manifest says how, and once is enough."""
    return model if reduction_of(model) is None else restore_(model)


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
    manifest = read_json(path)
    if Path(str(manifest.get("weights"))).name != manifest.get("weights"):
        raise ValueError(f"{path} points outside its own directory: {manifest.get('weights')!r}.")
    return manifest


def read_json(path: Path) -> dict[str, Any]:
    """What a file of ours holds; anything that is not of this format is refused."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise ValueError(f"{path} has format {found!r}; this foveate reads {FORMAT}.")
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
