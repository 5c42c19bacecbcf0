"""``_manifest.json`` of an output folder: which run it belongs to, and what came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foveate.adapters import inspect
from foveate.files import LOCK, TEMPORARY, check_writable, checksum, read_json, sealed, unsealed, write_text
from foveate.methods.validation import shown
from foveate.scale.predictor import Predictor
from foveate.scale.tables import Written, file_name, read_failures, read_footer
from foveate.storage import MANIFEST as SAVED

MANIFEST = "_manifest.json"
"""Readers of Parquet folders skip names that begin with an underscore."""
KIND = "predictions"
MOST_FAILURES = 100
"""Broken images that the manifest lists; every one is in the files."""
Job = dict[str, Any]


def describe_job(predictor: Predictor, **source: Any) -> Job:
    """What decides which rows come out: model, weights, reduction, output, images and how they are batched."""
    reduction = predictor.reduction
    if reduction is None and isinstance(predictor.model, nn.Module):
        reduction = inspect(predictor.model).reduction
    assert not isinstance(reduction, str)
    return {
        "model": _model_name(predictor.model),
        "weights": _weights(predictor),
        "reduction": None if reduction is None else reduction.to_dict(),
        "output": predictor.output,
        **({"top_k": predictor.top_k} if predictor.output == "classes" else {"dtype": predictor.dtype}),
        "image_size": None if predictor.image_size is None else list(predictor.image_size),
        "classes": None if predictor.classes is None else _digest(predictor.classes),
        **source,
    }


def job_id(job: Job) -> str:
    return _digest([json.dumps(job, sort_keys=True)])


def _model_name(model: str | Path | nn.Module) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else str(model)


def _weights(predictor: Predictor) -> str:
    """A checksum of the weights, or where they come from."""
    model = predictor.model
    if isinstance(model, nn.Module):
        named = sorted(model.state_dict().items())
        return _digest(f"{name} {tuple(t.shape)} {_of_tensor(t)}" for name, t in named)
    if predictor.weights is not None:
        return checksum(Path(predictor.weights))
    if (Path(model) / SAVED).is_file():  # saved and exported folders: it holds the checksum of the weights
        return checksum(Path(model) / SAVED)
    return "pretrained" if predictor.pretrained else "the library's"


def _of_tensor(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def check_folder(folder: Path, resume: bool) -> None:
    """Raise a ValueError unless the output can be written to ``folder``: a new or an empty one, or that of a run."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. Predictions are written to a folder.")
    check_writable(folder)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    if MANIFEST in names:
        job = read_job(folder)
        if not resume:
            raise ValueError(
                f"{folder} holds the predictions of {job.get('model')} for {job.get('data')}. Go on with --resume "
                "(resume=True in Python), or choose another folder."
            )
        return
    others = [name for name in names if name != LOCK and not TEMPORARY.fullmatch(name)]
    if others:
        raise ValueError(f"{folder} holds other files, such as {sorted(others)[0]}. Use a new or an empty folder.")


def read_job(folder: Path) -> Job:
    """The run that a folder belongs to.

    Raises:
        ValueError: if its manifest is not one of predictions, or is damaged.
    """
    path = folder / MANIFEST
    data = read_json(path)
    if data.get("kind") != KIND or not isinstance(data.get("job"), dict):
        raise ValueError(f"{path} is not a manifest of predictions. Choose another folder.")
    return unsealed(data, path, "Choose another folder.")["job"]


def check_same_job(found: Job, job: Job, folder: Path) -> None:
    """Raise a ValueError that names the first difference between the run of a folder and this one."""
    for name in dict.fromkeys([*job, *found]):
        if found.get(name) != job.get(name):
            raise ValueError(
                f"{folder} holds another run: its {name} is {shown(found.get(name))}, and {shown(job.get(name))} was "
                "given. Resume it as it was started, or choose another folder."
            )


def finished_parts(folder: Path, job: str, expected: Iterable[int | None]) -> dict[int, Written]:
    """Parts that are complete. A damaged file, or one of another length, is not: it is written again.

    Raises:
        ValueError: if a file belongs to another run.
    """
    found = {}
    for part, rows in enumerate(expected):
        path = folder / file_name(part)
        footer = read_footer(path) if path.is_file() else None
        if footer is None:
            continue
        if footer[0] != job:
            raise ValueError(f"{path} belongs to another run. Choose another folder.")
        if rows is None or rows == footer[1]:
            found[part] = Written(part, footer[1], footer[2])
    return found


def write_manifest(folder: Path, job: Job, result: dict[str, Any] | None = None) -> None:
    """Write the manifest; ``result`` is given when all is done."""
    data = {"format": 1, "kind": KIND, "complete": result is not None, "job": job, **(result or {})}
    write_text(folder / MANIFEST, json.dumps(sealed(data), indent=2) + "\n")


def describe_result(folder: Path, written: Iterable[Written]) -> dict[str, Any]:
    """Counts of a finished run, and its first failures."""
    parts = sorted(written)
    failures: list[dict[str, str]] = []
    for part in parts:
        if part.broken and len(failures) < MOST_FAILURES:
            failures += read_failures(folder / file_name(part.part), MOST_FAILURES - len(failures))
    images, broken = sum(part.rows for part in parts), sum(part.broken for part in parts)
    counts = {"images": images, "predicted": images - broken, "broken": broken, "files": len(parts)}
    return {"counts": counts, "failures": failures}
