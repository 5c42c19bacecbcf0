"""The kinds of files that are spoiled: how each is placed in a case's folder, and how it is read."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import foveate as fv
from foveate.data.loader import Loader
from foveate.data.open import open_data
from foveate.models.by_name import load_weights_
from foveate.report.compare.saving import load_results
from foveate.tasks import find_task
from foveate.training.recipe import find_recipe

from .commands import run_command
from .dense_kinds import DENSE_KINDS
from .judging import MODEL_CHANGED, Wrong, check_unchanged, contents, fault_of
from .kind import Kind
from .materials import NAMES, Materials
from .values import images, is_as_made, tiny_model


def _copied(name: str, *others: str) -> Callable[[Materials, Path], Path]:
    def place(materials: Materials, folder: Path) -> Path:
        for other in (name, *others):
            source = materials.root / other
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / other)
        return folder / name

    return place


def _in_saved(pattern: str) -> Callable[[Materials, Path], Path]:
    def place(materials: Materials, folder: Path) -> Path:
        shutil.copytree(materials.root / "saved", folder / "saved")
        return next((folder / "saved").glob(pattern))

    return place


def _load(path: Path, materials: Materials) -> Any:
    model = fv.load(path.parent)
    with torch.no_grad():
        return model(images())


def _load_into(path: Path, materials: Materials) -> Any:
    """Fill a model of the caller's, which an error leaves as it was."""
    model = tiny_model()
    try:
        fv.load(path.parent, model=model)
    except Exception as error:
        if not fault_of(error) and not is_as_made(model):
            raise Wrong(MODEL_CHANGED) from error
        raise
    with torch.no_grad():
        return model(images())


def _run_copy(materials: Materials, folder: Path) -> Path:
    shutil.copytree(materials.run, folder / "run")
    return folder / "run" / "checkpoint.safetensors"


def _resume(path: Path, materials: Materials) -> Any:
    outcome = fv.train(materials.config, out=path.parent, resume=True)
    kept = ("epoch", "step", "train", "val", "broken")  # the rest are times
    return outcome.finished, [[line.get(name) for name in kept] for line in outcome.history]


def _compared(name: str) -> Callable[[Materials, Path], Path]:
    def place(materials: Materials, folder: Path) -> Path:
        shutil.copytree(materials.comparison, folder / "report")
        return folder / "report" / name

    return place


def _resume_comparison(path: Path, materials: Materials) -> Any:
    found = materials.compare(path.parent, resume=True)
    fields = ("title", "counts", "agreement", "top1", "speed_up")
    entries = [tuple(getattr(entry, name, None) for name in fields) for entry in found.entries]
    if any(not 0 <= entry.agreement <= 100 for entry in found.entries if entry.agreement is not None):
        raise Wrong("an agreement outside 0..100")
    return entries


def _results(path: Path, materials: Materials) -> Any:
    found = load_results(path.parent)
    found.table(), str(found)
    return json.dumps(found.as_dict(), sort_keys=True)


def _recipe(path: Path, materials: Materials) -> Any:
    recipe = find_recipe(path)
    return dataclasses.asdict(recipe.config), sorted(recipe.variants)


def _read_all(spec: str, materials: Materials, split: str, **options: Any) -> Any:
    """Every image and label of some data."""
    data = open_data(spec, split, **options)
    task = find_task("classification").for_data(data)
    loader = Loader(data, _shrunk, 2, seed=0, train=False, workers=0, max_broken=0.5, rules=task)
    return [batch.images.shape for batch in loader.epoch(0)]


def _shrunk(image: Any) -> torch.Tensor:
    return torch.tensor(list(image.convert("RGB").resize((4, 4)).tobytes())).view(3, 4, 4).float()


def _one_picture(kind: str) -> Callable[[Materials, Path], Path]:
    def place(materials: Materials, folder: Path) -> Path:
        shutil.copytree(materials.pictures, folder / "pictures")
        return folder / "pictures" / "val" / NAMES[0] / f"{1 if kind == 'png' else 0}.{kind}"

    return place


def _read_folder(path: Path, materials: Materials) -> Any:
    return _read_all(str(path.parents[2]), materials, "val")


def _filled(path: Path, materials: Materials) -> Any:
    """Fill a model from a file of weights, which an error leaves as it was."""
    model: nn.Module = tiny_model()
    try:
        load_weights_(model, path)
    except Exception as error:
        if not fault_of(error) and not is_as_made(model):
            raise Wrong("the model is changed after an error") from error
        raise
    return None


def _hugging_face(name: str) -> Callable[[Materials, Path], Path]:
    def place(materials: Materials, folder: Path) -> Path:
        shutil.copytree(materials.hugging_face, folder / "hf")
        return folder / "hf" / name

    return place


def _with_command(*words: str) -> Callable[[Path, Materials], Any]:
    """Read the file by a command, which must answer with a code of its own."""

    def read(path: Path, materials: Materials) -> Any:
        before = contents(Path.cwd())
        known = {"file": str(path), "pictures": str(materials.pictures)}
        argv = [word.format(**known) for word in words]
        code, output, error = run_command(argv)
        if error is not None and (fault := fault_of(error)):
            raise Wrong(f"{fault}\n{' '.join(str(error).split())[:200]}")
        if code not in (0, 2) or "Traceback" in output:
            raise Wrong(f"exit code {code}\n{output[:200]}")
        if code == 2:
            check_unchanged(before, Path.cwd())

    return read


KINDS = (
    Kind("saved foveate.json", _in_saved("foveate.json"), _load, "json", exact=True, weight=4),
    Kind("saved weights", _in_saved("*.safetensors"), _load, exact=True, weight=1.5),
    Kind("saved weights, into a model", _in_saved("*.safetensors"), _load_into, exact=True),
    Kind("saved manifest, into a model", _in_saved("foveate.json"), _load_into, "json", exact=True),
    Kind("checkpoint", _run_copy, _resume, exact=True, weight=0.8),
    Kind("partial.json", _compared("partial.json"), _resume_comparison, "json", weight=0.8),
    Kind("results.json", _compared("results.json"), _results, "json", exact=True, weight=2),
    Kind("saved foveate.json, sealed again", _in_saved("foveate.json"), _load, "sealed", weight=2),
    Kind("saved manifest, sealed again, into a model", _in_saved("foveate.json"), _load_into, "sealed"),
    Kind("checkpoint, sealed again", _run_copy, _resume, "checkpoint"),
    Kind("partial.json, sealed again", _compared("partial.json"), _resume_comparison, "sealed", weight=0.8),
    Kind("results.json, sealed again", _compared("results.json"), _results, "sealed", weight=2),
    Kind("schedule", _copied("schedule"), lambda path, _: repr(fv.load_schedule(path)), "json", weight=2),
    Kind("recipe", _copied("recipe.toml"), _recipe, "toml", weight=3),
    Kind("labels.csv", _copied("labels.csv"), lambda path, m: _read_all(str(path), m, "val"), weight=1.5),
    Kind("shard", _copied("shard.tar"), lambda path, m: _read_all(f"wds:{path}", m, "all", num_classes=2), weight=1.5),
    Kind("PNG image", _one_picture("png"), _read_folder),
    Kind("JPEG image", _one_picture("jpg"), _read_folder),
    Kind("weights.safetensors", _copied("weights.safetensors"), _filled),
    Kind("weights.pth", _copied("weights.pth"), _filled),
    Kind(
        "transformers config.json",
        _hugging_face("config.json"),
        lambda path, m: _used(fv.models.load_model(f"hf:{path.parent}")),
        "json",
        weight=2,
    ),
    Kind(
        "transformers weights",
        _hugging_face("model.safetensors"),
        lambda path, m: _used(fv.models.load_model(f"hf:{path.parent}")),
    ),
    Kind(
        "classes by command",
        _copied("classes.txt", "plain"),
        _with_command("eval", "plain", "--data", "{pictures}", "--workers", "0", "--classes", "{file}"),
        weight=0.8,
    ),
    Kind(
        "schedule by command",
        _copied("schedule", "plain"),
        _with_command("cost", "plain", "--method", "tome", "--schedule", "{file}"),
        "json",
        weight=0.8,
    ),
    Kind(
        "picture by command",
        _one_picture("png"),
        _with_command("show", "tokens", "plain", "{file}", "--method", "tome", "--keep-rate", "0.6"),
        weight=0.3,
    ),
    *DENSE_KINDS,
)


def _used(model: nn.Module) -> None:
    fv.cost(model)
