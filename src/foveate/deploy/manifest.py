"""``foveate.json`` of an exported model: what is in the folder, and what it was made from."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foveate.deploy.targets import TARGETS
from foveate.evaluation.plain_data import read_dataclass
from foveate.files import check_file, read_json, sealed, unsealed
from foveate.reductions import Reduction

MANIFEST = "foveate.json"
KIND = "export"
AGAIN = "Export the model again, or copy the folder again."


@dataclass(frozen=True)
class Input:
    """What the exported model takes."""

    name: str
    dtype: Literal["float32", "uint8"]
    size: tuple[int, ...]
    """The shape of one image."""
    layout: Literal["NCHW", "NHWC"]


@dataclass(frozen=True)
class Manifest:
    """The content of the file."""

    target: str
    files: dict[str, str]
    """Names of the files, with their checksums."""
    reduction: dict[str, Any]
    input: dict[str, Any]
    """The values of ``Input`` by name."""
    outputs: list[str]
    returns: Literal["tensor", "fields"]
    """``tensor`` if the model returned one, else ``fields``."""
    num_classes: int | None
    """Classes that the model predicts; None if it has no classifier."""
    classes: list[str] | None
    preprocessing: dict[str, Any]
    versions: dict[str, str]
    verified: dict[str, Any]
    quantized: dict[str, Any] | None = None

    def text(self) -> str:
        return json.dumps(sealed({"format": 1, "kind": KIND, **dataclasses.asdict(self)}), indent=2) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest, and compare all files with their checksums.

    Raises:
        ValueError: if the folder is not an exported model, or anything in it was changed.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} is not an exported model: it has no {MANIFEST}. fv.export writes one.")
    data = read_json(path, (1, 2))
    if data.get("kind") != KIND:
        raise ValueError(f"{folder} holds a saved model, not an exported one. Load it with fv.load.")
    data = unsealed(data, path, AGAIN)
    manifest = _read(data, path)
    if tuple(manifest.files) != TARGETS[manifest.target].files:
        raise ValueError(f"{path} names other files than {manifest.target} has. {AGAIN}")
    for name, expected in manifest.files.items():
        if not (folder / name).is_file():
            raise ValueError(f"{folder} lacks {name}. {AGAIN}")
        check_file(folder / name, expected, AGAIN)
    Reduction.from_dict(manifest.reduction)
    return manifest


def _read(data: dict[str, Any], path: Path) -> Manifest:
    content = {name: value for name, value in data.items() if name not in ("format", "kind", "checksum")}
    try:
        manifest = read_dataclass(Manifest, content, "the manifest")
        given = read_dataclass(Input, manifest.input, "input")
    except ValueError as error:
        raise ValueError(f"{path} is not a manifest that this version of foveate reads: {error} {AGAIN}") from error
    if manifest.target not in TARGETS or len(given.size) != 3 or not manifest.outputs:
        raise ValueError(f"{path} is not a manifest that this version of foveate reads. {AGAIN}")
    return manifest


def is_export(folder: Path) -> bool:
    """Whether the folder has the manifest of an export, whole or damaged."""
    try:
        return read_json(folder / MANIFEST, (1, 2)).get("kind") == KIND
    except (ValueError, OSError):
        return False
