"""``fv.load_exported``: run what ``fv.export`` wrote with the call of a model."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from foveate.deploy.manifest import Manifest, read_manifest
from foveate.deploy.targets import Loading, Run, target_named
from foveate.evaluation.timing import check_positive
from foveate.methods.validation import check_type, shown
from foveate.reductions import Reduction


class Fields(dict[str, Tensor]):
    """Outputs by name, also as attributes, like the outputs of transformers."""

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The outputs are {', '.join(self)}; there is no {name!r}.") from None


class ExportedModel:
    """An exported model, ready to run on the CPU: ``model(images)`` returns what the model returned."""

    def __init__(self, manifest: Manifest, run: Run, batch_size: int | None = None) -> None:
        self.manifest, self._run, self.batch_size = manifest, run, batch_size
        self.classes = manifest.classes
        self.reduction = Reduction.from_dict(manifest.reduction)
        self.image_size: tuple[int, ...] = tuple(manifest.input["size"])
        """The shape of one image."""
        self.dtype: torch.dtype = getattr(torch, manifest.input["dtype"])

    def __call__(self, images: Tensor) -> Tensor | Fields:
        """Run a batch of images of any size.

        Raises:
            ValueError: if images have another shape or type than the model takes.
        """
        if not self._takes(images):
            found = f"{tuple(images.shape)} of {images.dtype}" if isinstance(images, Tensor) else type(images).__name__
            found += " that is not strided" if isinstance(images, Tensor) and images.layout != torch.strided else ""
            shape = ", ".join(map(str, self.image_size))
            raise ValueError(f"Images must be a tensor (batch, {shape}) of {self.dtype}, got {found}.")
        if not len(images):
            raise ValueError("The batch is empty. Pass at least one image.")
        if self.batch_size not in (None, len(images)):
            raise ValueError(f"The model was loaded for batches of {self.batch_size}, got {len(images)} images.")
        outputs = self._run(images.detach().cpu())
        if self.manifest.returns == "tensor":
            return outputs[0]
        return Fields(zip(self.manifest.outputs, outputs, strict=True))

    def _takes(self, images: object) -> bool:
        if not isinstance(images, Tensor) or images.layout != torch.strided:
            return False
        return tuple(images.shape[1:]) == self.image_size and images.dtype == self.dtype

    def __repr__(self) -> str:
        kind = "" if self.manifest.quantized is None else " int8"
        return f"ExportedModel({self.manifest.target}{kind}, {self.reduction})"


def load_exported(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    trusted: bool = False,
    precision: str = "fp32",
    batch_size: int | None = None,
) -> ExportedModel:
    """Load a model that ``fv.export`` wrote, for this machine's CPU. All files are compared with their checksums.

    Args:
        path: The folder.
        threads: Threads of the runtime. Default: as many as torch uses. ``torch-export`` and ``aoti`` use torch's own.
        trusted: Whether code in the folder may run. ONNX and OpenVINO files hold data only and do not need it;
            ``torch-export`` archives may hold pickles, and ``aoti`` is a compiled library.
        precision: ``"bf16"`` lets OpenVINO compute in bfloat16 where the processor can: faster and less exact.
        batch_size: The only number of images in a call. OpenVINO is then 5 to 25 % faster at batch 1. Default: any.

    Raises:
        ValueError: If the folder is not an exported model, was changed, needs ``trusted=True``, or its runtime is not
            installed.
    """
    check_type(str | os.PathLike, "a path", path=path)
    check_positive(threads=threads, batch_size=batch_size)
    check_type(bool, "True or False", trusted=trusted)
    folder = Path(path)
    manifest = read_manifest(folder)
    target = target_named(manifest.target)
    if target.runs_code and not trusted:
        raise ValueError(
            f"{folder} was exported to {target.name}, which holds {target.runs_code}: loading it may run code. If you "
            "made it or trust its author, pass trusted=True. ONNX and OpenVINO exports hold data only."
        )
    if precision not in ("fp32", "bf16") or (precision == "bf16" and target.name != "openvino"):
        raise ValueError(
            f"precision must be 'fp32', or 'bf16' with openvino; got {shown(precision)} and {target.name}."
        )
    files = [folder / name for name in target.files]
    shape = None if batch_size is None else (batch_size, *manifest.input["size"])
    return ExportedModel(manifest, target.open(files, Loading(threads, precision, shape)), batch_size)
