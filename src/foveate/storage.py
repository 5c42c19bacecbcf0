"""Save and load a model with its reduction: weights in safetensors, the rest in JSON."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.adapters import Family, copy_reducible, copy_unreduced, inspect, rebuild
from foveate.files import (
    FORMAT,
    LOCK,
    TEMPORARY,
    check_file,
    created_folder,
    read_json,
    remove_left_over,
    sealed,
    unsealed,
    waiting_lock,
    write_tensors,
    write_text,
)
from foveate.reductions import Reduction
from foveate.schedules import PlanError, Schedule, schedule_from_dict, schedule_to_dict

MANIFEST = "foveate.json"
OF_A_RUN = ("best", "model")
"""Folders of models below that of a training run; the first that is there is taken."""
MANIFEST_FORMATS = (1, 2)
DEPTHS = ("depth", "depths", "num_hidden_layers", "num_layers")
"""Options that are numbers of blocks."""
SMALLEST_LIMIT = 10**6
"""Numbers of an architecture up to this size are never refused: sizes of images, tokens of a vocabulary."""
"""Formats of the manifest that are read; the last is written. Format 1, of foveate 0.1, has no checksums."""
WEIGHTS = re.compile(r"model-[0-9a-f]{8}\.safetensors")  # not those of others: model-00001-of-00002.safetensors
READ_ATTEMPTS = 20
"""How often a reader looks again where a writer replaced what it was about to read."""
SAVE_AGAIN = "Save the model again, or copy the folder again."


def save(model: nn.Module, directory: str | os.PathLike[str]) -> Path:
    """Write ``model`` to ``directory``: weights, architecture, method, schedule and options.

    The manifest is replaced last and in one step, and names the weights it belongs to with their checksum, so that a
    crash leaves the old save or the new one. Several processes may save to one folder: the last one stays. If the
    architecture cannot be rebuilt from plain data (a model built by hand), a warning is given, and ``load`` will need
    an untrained model of that shape.

    Args:
        model: a model of a supported family, reduced or not.
        directory: a new or empty folder, or one of an earlier save, which is replaced.

    Returns:
        The folder.
    """
    family = inspect(model)
    folder = Path(directory)
    check_save_folder(folder)
    _check_depth(family)
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise ValueError("This model is on the meta device and has no weights to save. Load them first.")
    manifest: dict[str, Any] = {
        "format": MANIFEST_FORMATS[-1],
        "model": _checked_architecture(family),
        "reduction": family.reduction.to_dict(),
    }
    tensors = _plain_tensors(model)
    with created_folder(folder), waiting_lock(folder):
        weights = folder / f"model-{secrets.token_hex(4)}.safetensors"
        try:
            manifest |= {"weights": weights.name, "weights_checksum": write_tensors(weights, tensors)}
            write_text(folder / MANIFEST, json.dumps(sealed(manifest), indent=2))
        except BaseException:
            if not _is_named(weights, folder):  # an interruption may come after the manifest was replaced
                weights.unlink(missing_ok=True)
            raise
        for old in folder.iterdir():  # nobody else writes here now, so what the manifest does not name is left over
            if old != weights and WEIGHTS.fullmatch(old.name):
                old.unlink(missing_ok=True)
        remove_left_over(folder)
    return folder


def check_save_folder(folder: Path) -> None:
    """Raise ``ValueError`` for a path that ``save`` refuses: a file, or a folder of something else."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. save needs a directory.")
    if folder.is_dir() and not (folder / MANIFEST).is_file() and not all(map(_is_left_over, folder.iterdir())):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}. Use a new or an empty directory.")


def _is_named(weights: Path, folder: Path) -> bool:
    manifest = folder / MANIFEST
    return manifest.is_file() and weights.name in manifest.read_text(encoding="utf-8", errors="replace")


def _plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict on the CPU; tensors that share memory are copied, since a file has each once."""
    tensors, seen = {}, set()
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().contiguous().cpu()
        place = (plain.untyped_storage().data_ptr(), plain.device)
        tensors[name] = plain.clone() if place in seen and plain.numel() else plain
        seen.add(place)
    return tensors


def _is_left_over(path: Path) -> bool:
    """Whether a save that was killed before its manifest wrote this file."""
    return path.name == LOCK or bool(WEIGHTS.fullmatch(path.name) or TEMPORARY.fullmatch(path.name))


def load(directory: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Load a model that ``save`` wrote, in evaluation mode.

    Nothing in the folder is executed and no network is used. Weights are compared with the checksum that was written,
    which takes about a second per gigabyte.

    Args:
        directory: a folder written by ``save``, or the folder of a training run: its best model, else its last.
        model: needed only if the architecture could not be saved: an unreduced model of the same shape, which is
            filled in place. On any error it is left as it was.
    """
    folder = saved_folder(directory)
    manifest, tensors = _read_whole(folder)
    reduction = Reduction.from_dict(manifest.get("reduction"))
    if model is None:
        _check_sizes(manifest.get("model"), tensors, folder)
        model = _rebuild(manifest.get("model"), folder)
    else:
        inspect(model)  # refuses what is not a supported model
        if any(parameter.is_meta for parameter in model.parameters()):
            raise ValueError("This model is on the meta device, which holds no values. Build it on the CPU first.")
        # try on a second root over its modules, and check everything, before the model itself changes
        _check_fit(reduction.apply_(copy_reducible(model)), tensors, folder)
    reduction.apply_(model)
    _check_fit(model, tensors, folder)
    device = next(model.parameters()).device
    model.load_state_dict({k: v.to(device) for k, v in tensors.items()}, assign=True)  # assign keeps the saved dtype
    return model.eval()


def save_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> Path:
    """Write a schedule to a JSON file, for example ``Keep(found_counts(model))`` after a search."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"format": FORMAT, "schedule": schedule_to_dict(schedule)}, indent=2) + "\n")
    return file


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Load a schedule that ``save_schedule`` wrote."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"There is no file {file}.")
    data = read_json(file)
    try:
        return schedule_from_dict(data.get("schedule"))  # type: ignore[arg-type]
    except PlanError as error:
        raise ValueError(f"{file} does not hold a schedule written by foveate.save_schedule. {error}") from error


def _check_depth(family: Family) -> None:
    """Raise ``ValueError`` for a model that lost blocks after it was reduced: the stored form cannot describe it."""
    reducer = family.reducer
    if reducer is not None and len(family.blocks) != reducer.shape.depth:
        raise ValueError(
            f"This model was reduced with {reducer.shape.depth} blocks and now has {len(family.blocks)}. "
            "Such a model cannot be saved. Save it before pruning."
        )


def _checked_architecture(family: Family) -> dict[str, Any] | None:
    """The architecture, if a model rebuilt from it is the same; else None, with a warning."""
    architecture = family.architecture()
    if architecture is not None:
        architecture = json.loads(json.dumps(architecture, default=str))
        try:
            same = _fingerprint(family.rebuild(architecture)) == _fingerprint(family.model)
        except (AssertionError, RuntimeError, TypeError, ValueError):
            same = False  # an option that this architecture does not accept
        if same:
            return architecture
    warnings.warn(
        "This model's architecture cannot be rebuilt from plain data. load(directory, model=...) will need an "
        "unreduced model of the same shape.",
        stacklevel=3,
    )
    return None


def _fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """What two models must share for weights to fit: the printed modules and the shape of every tensor."""
    model = copy_unreduced(model)
    shapes = [(k, tuple(v.shape)) for k, v in model.state_dict().items()]
    return [(name, repr(child)) for name, child in model.named_children()], shapes


def _rebuild(architecture: dict[str, Any] | None, folder: Path) -> nn.Module:
    if architecture is None:
        raise ValueError(f"{folder} does not hold the model's architecture. Call load({str(folder)!r}, model=...).")
    return rebuild(architecture)


def _check_sizes(architecture: Any, tensors: dict[str, Tensor], folder: Path, name: str = "model") -> None:
    """Refuse an architecture that is larger than its weights, before it takes all memory.

    Raises:
        ValueError: if a number of blocks exceeds that of the tensors, or any whole number that of their elements.
    """
    if isinstance(architecture, dict):
        for key, value in architecture.items():
            _check_sizes(value, tensors, folder, f"{name}.{key}")
    elif isinstance(architecture, list):
        for value in architecture:
            _check_sizes(value, tensors, folder, name)
    elif isinstance(architecture, int):
        blocks = name.rpartition(".")[2] in DEPTHS
        most = len(tensors) if blocks else max(SMALLEST_LIMIT, sum(t.numel() for t in tensors.values()))
        if architecture > most:
            raise ValueError(f"{folder}: {name} is {architecture!r:.40}, more than its weights can be of ({most}).")


def _check_fit(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Refuse weights of another model before anything is copied."""
    own = model.state_dict()
    missing, unexpected = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    if missing or unexpected:
        raise ValueError(
            f"The weights in {folder} do not fit the model: missing {sorted(missing)[:5]}, "
            f"unexpected {sorted(unexpected)[:5]}."
        )
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise ValueError(
                f"The weights in {folder} do not fit the model: {name} has shape {tuple(tensors[name].shape)} there "
                f"and {tuple(tensor.shape)} in the model."
            )


def _read_whole(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A manifest with its weights, also while another process replaces both."""
    for attempt in itertools.count(1):
        manifest = _read_manifest(folder)
        weights = folder / manifest["weights"]
        try:
            return manifest, _read_weights(weights, manifest.get("weights_checksum"))
        except ValueError:
            replaced = not weights.exists() and _read_manifest(folder)["weights"] != weights.name
            if not replaced or attempt == READ_ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _read_weights(path: Path, checksum: str | None) -> dict[str, Tensor]:
    try:
        check_file(path, checksum, SAVE_AGAIN)
        return load_file(path)
    except ValueError:
        raise
    except FileNotFoundError:
        raise ValueError(f"{path.parent} names the weights {path.name}, which are not there. {SAVE_AGAIN}") from None
    except Exception as error:  # safetensors raises its own kinds for truncated, foreign and vanished files
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error


def saved_folder(directory: str | os.PathLike[str]) -> Path:
    """Return the folder of a saved model: itself, or the best, else the last, model of a training run's folder."""
    folder = Path(directory)
    if (folder / MANIFEST).is_file():
        return folder
    return next((folder / name for name in OF_A_RUN if (folder / name / MANIFEST).is_file()), folder)


def check_saved(folder: Path) -> None:
    """Raise a ValueError if ``folder`` is not of ``save``. Its weights are not read."""
    _read_manifest(saved_folder(folder))


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} has no {MANIFEST}, so it was not written by foveate.save.")
    manifest = read_json(path, MANIFEST_FORMATS)
    if manifest["format"] > 1:
        manifest = unsealed(manifest, path, SAVE_AGAIN)
    if Path(str(manifest.get("weights"))).name != manifest.get("weights"):
        raise ValueError(f"{path} must name a weights file in its own directory, got {manifest.get('weights')!r}.")
    return manifest
