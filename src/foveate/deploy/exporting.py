"""``fv.export``: write a model for another runtime, and refuse it unless it computes what the model computes."""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foveate.adapters import copy_unreduced, inspect
from foveate.adapters.adaptive import adaptive_schedule, no_graph
from foveate.data.preprocessing import Preprocessing
from foveate.deploy.graph import EveryBlock, PixelInput, PlainOutputs, named_outputs, program_of
from foveate.deploy.manifest import MANIFEST, Manifest, is_export
from foveate.deploy.parity import Parity, agreement, compare, first_differing, outputs_of
from foveate.deploy.quantize import CALIBRATION_IMAGES, check_quantize, write_int8
from foveate.deploy.samples import SCENES, sample
from foveate.deploy.targets import INPUT, TARGETS, Loading, Run, Target, target_named
from foveate.evaluation.timing import check_positive
from foveate.files import (
    LOCK,
    TEMPORARY,
    check_writable,
    checksum,
    created_folder,
    replacing_all,
    waiting_lock,
    write_text,
)
from foveate.methods.validation import check_type, shown

IMAGES = 16
TOLERANCE = 1e-4
LEAST_AGREEMENT = 0.8
"""Share of decisions that int8 has to leave; below it something is wrong, not just rounded."""


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    to: str,
    *,
    data: Any = None,
    images: int | None = None,
    input_size: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    quantize: str | None = None,
    tolerance: float = TOLERANCE,
) -> Path:
    """Write ``model`` for another runtime, verified against eager PyTorch. The model itself does not change.

    The exported model takes batches of any size. It is compared with the model on images, and nothing is written if
    outputs differ by more than ``tolerance``. ``fv.load_exported`` runs it with the call of a model.

    Args:
        model: A model of a supported family, reduced or not; exported in evaluation mode and float32.
        path: A new or empty folder, or one of an earlier export, which is replaced.
        to: ``"onnx"``, ``"openvino"``, ``"torch-export"`` or ``"aoti"``.
        data: Images to verify with, and to calibrate int8 with: a tensor as the exported model takes it, a folder or
            another source. Default: built-in drawn scenes.
        images: How many of them. Default: 16, or 256 to calibrate.
        input_size: (height, width) of images that arrive as bytes (B, height, width, 3); resizing, cropping and colors
            then become part of the graph. Default: images arrive prepared, as the model takes them.
        classes: Names of the classes, kept with the model.
        quantize: ``"int8"`` for weights and activations in 8 bits; needs ``data`` like the images of later use.
        tolerance: Largest difference, relative to an image's largest output, or to 1 if that is larger. On up to 5 %
            of the images a reduced model may choose other tokens, where scores are equal up to rounding; their number
            is in the manifest.

    Returns:
        The folder.

    Raises:
        ValueError: If the runtime is not installed, the model, the images or the folder cannot be used, or outputs
            differ; the message names the first block that does.
    """
    family, target = inspect(model), target_named(to)
    if (schedule := adaptive_schedule(family.reducer)) is not None:
        raise ValueError(no_graph(schedule))
    check_quantize(quantize, target, data)
    check_type(str | os.PathLike, "a path", path=path)
    check_positive(images=images)
    check_tolerance(tolerance)
    _check_classes(classes, family.num_classes)
    folder = Path(path)
    check_folder(folder)
    own = copy.deepcopy(model).eval().to("cpu", torch.float32)
    preprocessing = Preprocessing.of(own)
    pixels = None if input_size is None else PixelInput(preprocessing, *_checked_size(input_size))
    count = images or (CALIBRATION_IMAGES if quantize else IMAGES)
    held = sample(data, preprocessing, pixels, count, family.image_size[0])
    job = _Job(own, pixels, held, target, tolerance)
    manifest = Manifest(
        target=target.name,
        files={},
        reduction=family.reduction.to_dict(),
        input={"name": INPUT, "dtype": str(held.dtype).removeprefix("torch."), "size": list(held.shape[1:])}
        | {"layout": "NCHW" if pixels is None else "NHWC"},
        outputs=job.names,
        returns=job.returns,
        num_classes=family.num_classes,
        classes=None if classes is None else list(classes),
        preprocessing=dataclasses.asdict(preprocessing),
        versions={"foveate": importlib.metadata.version("foveate"), **target.versions()},
        verified={},
    )
    final = [*(folder / name for name in target.files), folder / MANIFEST]
    with created_folder(folder), waiting_lock(folder), replacing_all(final) as places:
        *files, note = places
        job.write(files)
        verified: dict[str, Any] = {"data": SCENES if data is None else _name_of(data)}
        verified |= dataclasses.asdict(job.verify(files))
        quantized = None if quantize is None else job.quantize(files)
        sums = {name: checksum(file) for name, file in zip(target.files, files, strict=True)}
        whole = dataclasses.replace(manifest, files=sums, verified=verified, quantized=quantized)
        write_text(note, whole.text())
    _remove_others(folder, target)
    return folder


@dataclass
class _Job:
    """One model on its way to one target."""

    model: nn.Module
    pixels: PixelInput | None
    images: Tensor
    target: Target
    tolerance: float

    def __post_init__(self) -> None:
        with torch.no_grad():
            probe = self.images[:1] if self.pixels is None else self.pixels(self.images[:1])
            output = self.model(probe)
        self.names = list(named_outputs(output))
        self.returns: Literal["tensor", "fields"] = "tensor" if isinstance(output, Tensor) else "fields"
        self.module = PlainOutputs(self.model, self.pixels).eval()
        self.expected = outputs_of(self.module, self.images)

    def write(self, files: Sequence[Path]) -> None:
        program = program_of(self.module, self.images)
        try:
            self.target.write(program, files, self.names)
        except OSError:
            raise  # of the disk
        except Exception as error:  # each exporter raises its own kinds
            raise ValueError(
                f"{self.target.name} does not take this model: {_reason(error)} Try another target, or another method."
            ) from error

    def verify(self, files: Sequence[Path]) -> Parity:
        """Compare the files with the model; raises a ValueError if they differ."""
        parity = compare(self.expected, self._run(files), self.tolerance, self._reduces)
        if parity.holds:
            return parity
        raise ValueError(
            f"The model in {self.target.name} differs from PyTorch on {parity.flipped} of {parity.images} images, by "
            f"{parity.largest_difference:.2g} at most; {self.tolerance:g} is tolerated. {self._where()} Nothing was "
            "written."
        )

    def quantize(self, files: Sequence[Path]) -> dict[str, Any]:
        """Replace the files by int8 and count what that costs, apart from what the reduction costs."""
        write_int8(self.target, self.module, files, self.images, self.names)
        both = self._run(files)[0]
        stays = agreement(self.expected[0], both)
        if stays < LEAST_AGREEMENT:
            raise ValueError(
                f"int8 leaves only {stays:.1%} of the decisions on {len(both)} images, where {LEAST_AGREEMENT:.0%} "
                "are needed. Use images like those of later use, more of them, or float32. Nothing was written."
            )
        whole = outputs_of(PlainOutputs(copy_unreduced(self.model), self.pixels).eval(), self.images)[0]
        return {
            "kind": "int8",
            "calibration_images": len(self.images),
            "agreement_by_reduction": agreement(whole, self.expected[0]),
            "agreement_by_quantization": stays,
            "agreement_by_both": agreement(whole, both),
        }

    @property
    def _reduces(self) -> bool:
        return not inspect(self.model).reduction.is_identity

    def _run(self, files: Sequence[Path]) -> list[Tensor]:
        return outputs_of(self.target.open(files, Loading()), self.images)

    def _where(self) -> str:
        """The first block that differs, found by exporting the tokens after each block."""
        module = EveryBlock(self.model, self.pixels).eval()
        expected = outputs_of(module, self.images)
        with tempfile.TemporaryDirectory() as place:
            files = [Path(place) / name for name in self.target.files]
            names = [f"block_{number}" for number in range(len(expected))]
            self.target.write(program_of(module, self.images), files, names)
            found: Run = self.target.open(files, Loading())
            block = first_differing(expected, outputs_of(found, self.images), self.tolerance)
        return "All blocks agree; the head differs." if block is None else f"Block {block} is the first to differ."


def _reason(error: Exception) -> str:
    """The lines of an exporter's error that name an operation, or its first line."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")] or [type(error).__name__]
    named = [line for line in lines if "aten." in line or "No conversion rule" in line or "No ONNX function" in line]
    return " ".join(dict.fromkeys(named[:3] or lines[:1])).rstrip(".") + "."


def check_folder(folder: Path) -> None:
    """Raise a ValueError unless ``folder`` can be exported to: new, empty, or of an earlier export."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. export needs a folder.")
    if folder.is_dir() and not is_export(folder):
        others = [p.name for p in folder.iterdir() if p.name != LOCK and not TEMPORARY.fullmatch(p.name)]
        if others:
            raise ValueError(f"{folder} holds other files, such as {others[0]}. Use a new or an empty folder.")
    check_writable(folder)


def _remove_others(folder: Path, target: Target) -> None:
    """Remove the files of an earlier export to another target."""
    known = {name for other in TARGETS.values() for name in other.files}
    for name in known - set(target.files):
        (folder / name).unlink(missing_ok=True)


def _check_classes(classes: Sequence[str] | None, number: int | None) -> None:
    if classes is None:
        return
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"classes must be a list of names, got {shown(classes)}.")
    if number is not None and len(classes) != number:
        raise ValueError(f"The model has {number} classes, and {len(classes)} names were given.")


def check_tolerance(tolerance: float) -> None:
    """Raise a ValueError for anything but a finite number above 0."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 < tolerance < math.inf:
        raise ValueError(f"tolerance must be above 0, got {shown(tolerance)}.")


def _checked_size(size: Sequence[int]) -> tuple[int, int]:
    pair = isinstance(size, list | tuple) and len(size) == 2
    if not pair or not all(type(side) is int and 0 < side < 2**16 for side in size):
        raise ValueError(f"input_size must be (height, width), got {shown(size)}.")
    return size[0], size[1]


def _name_of(data: Any) -> str:
    return "tensor" if isinstance(data, Tensor) else str(data)
