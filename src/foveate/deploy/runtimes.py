"""The runtimes that a model can be measured in. Each is made ready from the model itself, and called the same way."""

from __future__ import annotations

import copy
import importlib.util
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from foveate.deploy.graph import PlainOutputs, program_of
from foveate.deploy.quantize import check_tool, int8_in_pytorch, write_int8
from foveate.deploy.targets import TARGETS, Loading, quiet
from foveate.evaluation.environment import computes_bf16
from foveate.methods.validation import shown

PRECISIONS = {
    "eager": ("fp32", "bf16"),
    "compile": ("fp32", "bf16", "int8"),
    "onnxruntime": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
}
"""What each runtime offers on a CPU."""
TITLES = {
    "eager": "PyTorch eager",
    "compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
EXPORTS = {"onnxruntime": "onnx", "openvino": "openvino"}
"""The targets of ``fv.export`` that they run."""
ALL = "all"
Call = Callable[[Tensor], Tensor]
"""Images in, the model's first output."""


@dataclass(frozen=True)
class Runtime:
    """A runtime and the precision it computes in."""

    name: str
    precision: str = "fp32"

    @property
    def title(self) -> str:
        """As reports show it: ``OpenVINO int8``."""
        return TITLES[self.name] + ("" if self.precision == "fp32" else f" {self.precision}")

    @property
    def export_to(self) -> str | None:
        """The target of ``fv.export`` for it; None for PyTorch itself."""
        return EXPORTS.get(self.name)


EAGER = Runtime("eager")


@dataclass(frozen=True)
class Ready:
    """A model in a runtime."""

    run: Call
    """For batches of any size."""
    export_seconds: float
    """Time to write it for the runtime; 0 for PyTorch."""
    load_seconds: float
    """Time to load and compile it, up to the first output."""
    reopen: Callable[[int], Call] | None = None
    """Loads it for one batch size, in runtimes that are faster if they know it."""

    def for_batch(self, size: int) -> Call:
        """The model for batches of ``size`` images."""
        return self.run if self.reopen is None else self.reopen(size)


def read_runtimes(names: Sequence[str], precisions: Sequence[str] = ("fp32",)) -> tuple[list[Runtime], list[str]]:
    """Every runtime of ``names`` in every precision, and a sentence for each pair that does not exist.

    Args:
        names: of ``RUNTIMES``; ``all`` stands for every one that is installed.
        precisions: ``fp32``, ``bf16`` or ``int8``.

    Raises:
        ValueError: if a name is unknown or a runtime is not installed, or no pair is left.
    """
    known = sorted({precision for offered in PRECISIONS.values() for precision in offered})
    for kind, given, allowed in (
        ("runtime", names, [*PRECISIONS, ALL]),
        ("precision", precisions, known),
    ):
        wrong = [name for name in given if name not in allowed]
        if wrong or not given or isinstance(given, str):
            raise ValueError(f"{kind} must be of {', '.join(allowed)}; got {shown(wrong[0] if wrong else given)}.")
    found: list[Runtime] = []
    notes: list[str] = []
    for name in dict.fromkeys(_installed() if ALL in names else names):
        if name in EXPORTS:
            TARGETS[EXPORTS[name]].require_installed()
        for precision in dict.fromkeys(precisions):
            pair = Runtime(name, precision)
            reason = _missing(pair)
            notes += [] if reason is None else [f"Not measured: {pair.title}. {reason}"]
            found += [pair] if reason is None else []
    if not found:
        raise ValueError(" ".join(notes))
    return found, notes


def _installed() -> list[str]:
    def there(name: str) -> bool:
        return name not in EXPORTS or all(importlib.util.find_spec(p) for p in TARGETS[EXPORTS[name]].packages)

    return [name for name in PRECISIONS if there(name)]


def _missing(runtime: Runtime) -> str | None:
    """Why this runtime does not offer this precision here; None if it does."""
    if runtime.precision not in PRECISIONS[runtime.name]:
        return f"It offers {' and '.join(PRECISIONS[runtime.name])}."
    if runtime.precision == "bf16" and not computes_bf16(torch.device("cpu")):
        return "This processor has no bfloat16 instructions."
    if runtime.precision == "int8":
        try:
            check_tool(EXPORTS.get(runtime.name, "aoti"))
        except ValueError as error:
            return str(error)
    return None


def prepare(
    model: nn.Module,
    runtime: Runtime,
    images: Tensor,
    threads: int | None = None,
    place: Path | None = None,
) -> Ready:
    """Make ``model`` ready in ``runtime``; the model itself does not change.

    Args:
        model: reduced or not, in evaluation mode, on the CPU.
        runtime: where to run it.
        images: as the model takes them; int8 is calibrated on them.
        threads: of the runtime. Default: torch's.
        place: keeps the exported files here, and uses those that are there. Default: they are not kept.

    Raises:
        ValueError: if the model cannot be exported.
    """
    if runtime.export_to is None:
        return _in_pytorch(model, runtime, images)
    target = TARGETS[runtime.export_to]
    start = time.perf_counter()
    temporary = tempfile.TemporaryDirectory() if place is None else None
    folder = place or Path(temporary.name if temporary else "")
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in target.files]
    if not all(file.is_file() for file in files):
        module = PlainOutputs(model, None).eval()
        target.write(program_of(module, images), files, ["output"])
        if runtime.precision == "int8":
            write_int8(target, module, files, images, ["output"])
    written = time.perf_counter()

    def opened(batch: int | None) -> Call:
        shape = None if batch is None else (batch, *images.shape[1:])
        outputs = target.open(files, Loading(threads, runtime.precision, shape))
        return lambda x: outputs(x)[0]

    run = opened(None)
    run(images[:1])
    # ONNX Runtime plans for any size at no cost; the folder is removed with the last reference to it
    reopen = partial(_keeping, temporary, opened) if runtime.name == "openvino" else None
    return Ready(run, written - start, time.perf_counter() - written, reopen)


def _keeping(folder: object, opened: Callable[[int | None], Call], batch: int) -> Call:
    """``opened`` for a batch; ``folder`` is only held, so that its files are still there."""
    return opened(batch)


def _in_pytorch(model: nn.Module, runtime: Runtime, images: Tensor) -> Ready:
    start = time.perf_counter()
    dtype = torch.bfloat16 if runtime.precision == "bf16" else torch.float32
    own: nn.Module = PlainOutputs(model if dtype is torch.float32 else copy.deepcopy(model).to(dtype), None).eval()
    if runtime.precision == "int8":
        own = int8_in_pytorch(own)
    call = own if runtime.name == "eager" else torch.compile(_with_own_code(own), fullgraph=True, dynamic=True)

    def run(x: Tensor) -> Tensor:
        found: Tensor = call(x.to(dtype))[0]
        return found

    with quiet(), torch.inference_mode():
        run(images[:2])  # a batch of one would be compiled for one image only
        run(images[:1])
    return Ready(run, 0.0, time.perf_counter() - start)


def _with_own_code(model: nn.Module) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """``model`` as a function that shares no code object: ``torch.compile`` keeps a few graphs for each of them."""

    def call(images: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = model(images)
        return found

    return types.FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)
