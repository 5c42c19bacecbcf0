"""What a model can be exported to: how the files are written, and how they are run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.export import ExportedProgram

from foveate.methods.validation import shown

Run = Callable[[Tensor], list[Tensor]]
"""Images in, outputs in the order of their names."""
INPUT = "images"
OPSET = 20


@dataclass(frozen=True)
class Loading:
    """How a runtime shall load a model."""

    threads: int | None = None
    """Default: torch's."""
    precision: str = "fp32"
    """``bf16`` to compute in bfloat16, where offered."""
    shape: tuple[int, ...] | None = None
    """Of the only batches it will get, for runtimes that are faster if they know it. Default: any batch size."""

    @property
    def thread_count(self) -> int:
        return self.threads or torch.get_num_threads()


class Target(ABC):
    """One kind of exported model."""

    name: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that it needs, all of the extra ``export``; modules have the same names."""
    runs_code: ClassVar[str | None] = None
    """What loading its files may execute; None if they hold data only."""

    def require_installed(self) -> None:
        """Raise a ValueError that names the extra if a package is missing."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"{self.name} needs the package {package}, which is not installed. "
                    "Install the extra: pip install 'foveate[export]'."
                )

    def versions(self) -> dict[str, str]:
        """The versions of torch and of what this target needs."""
        return {name: importlib.metadata.version(name) for name in ("torch", *self.packages)}

    @abstractmethod
    def write(self, program: ExportedProgram, files: Sequence[Path], outputs: Sequence[str]) -> None:
        """Write ``program`` to the paths of ``files``."""

    @abstractmethod
    def open(self, files: Sequence[Path], how: Loading) -> Run:
        """Load the files, which ``write`` wrote, for this machine's CPU."""


class Onnx(Target):
    """One ONNX file, run by ONNX Runtime."""

    name = "onnx"
    files = ("model.onnx",)
    packages = ("onnx", "onnxscript", "onnxruntime")

    def write(self, program: ExportedProgram, files: Sequence[Path], outputs: Sequence[str]) -> None:
        with quiet():
            found = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(outputs),
                verbose=False,
            )
            assert found is not None
            found.save(str(files[0]), external_data=False)

    def open(self, files: Sequence[Path], how: Loading) -> Run:
        onnxruntime = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = how.thread_count
        # threads that spin on after a run take the processor from whatever comes next
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(str(files[0]), options, providers=["CPUExecutionProvider"])
        (entry,) = session.get_inputs()
        return lambda images: [
            torch.from_numpy(o) for o in session.run(None, {entry.name: images.contiguous().numpy()})
        ]


class OpenVino(Target):
    """OpenVINO's own format, made from the exported program.

    An ONNX file would do as well. From the program attention and norms arrive as they were written, which leaves half
    as many transposes and a tenth of the reorders, and no ONNX has to be made first.
    """

    name = "openvino"
    files = ("model.xml", "model.bin")
    packages = ("openvino",)

    def write(self, program: ExportedProgram, files: Sequence[Path], outputs: Sequence[str]) -> None:
        openvino = importlib.import_module("openvino")
        openvino.save_model(self.convert(program, outputs), str(files[0]), compress_to_fp16=False)

    def convert(self, program: ExportedProgram, outputs: Sequence[str]) -> Any:
        """The model in OpenVINO's memory."""
        openvino = importlib.import_module("openvino")
        with quiet():
            model = openvino.convert_model(program)
        ((example,), _) = program.example_inputs
        model.reshape([-1, *example.shape[1:]])  # only the batch size is open
        model.inputs[0].set_names({INPUT})
        for output, name in zip(model.outputs, outputs, strict=True):
            output.set_names({name})
        return model

    def open(self, files: Sequence[Path], how: Loading) -> Run:
        model = openvino_core().read_model(str(files[0]), str(files[1]))
        if how.shape is not None:
            # with an open batch size every operation works out its sizes in each call, which may take as long as itself
            model.reshape(list(how.shape))
        # float32 stays float32 unless asked for, also on processors with bfloat16
        kind = "bf16" if how.precision == "bf16" else "f32"
        hints = {
            "INFERENCE_NUM_THREADS": how.thread_count,
            "INFERENCE_PRECISION_HINT": kind,
            "PERFORMANCE_HINT": "LATENCY",
        }
        request = openvino_core().compile_model(model, "CPU", hints).create_infer_request()
        # a request has one set of outputs, which the next call overwrites
        return lambda images: [
            torch.from_numpy(o.copy()) for o in request.infer([images.contiguous().numpy()]).values()
        ]


@functools.cache
def openvino_core() -> Any:
    """The only Core of this process, which is never given back.

    Its CPU plugin replaces the stack on which the calling thread handles signals, and frees it with the last model of
    a Core. If another thread drops that model, the next signal of the first one ends the process.
    """
    core = importlib.import_module("openvino").Core()
    core.get_versions("CPU")  # loads the plugin, before any tool makes a Core that comes and goes
    return core


class TorchExport(Target):
    """``torch.export``'s archive, run by PyTorch."""

    name = "torch-export"
    files = ("model.pt2",)
    runs_code = "pickles"

    def write(self, program: ExportedProgram, files: Sequence[Path], outputs: Sequence[str]) -> None:
        with quiet():
            torch.export.save(program, str(files[0]))

    def open(self, files: Sequence[Path], how: Loading) -> Run:
        with quiet():
            module = torch.export.load(str(files[0])).module()
        return _run_module(module)


class AotInductor(Target):
    """A compiled library in one file, run by PyTorch without a compile step; needs a C++ compiler to write."""

    name = "aoti"
    files = ("model.pt2",)
    runs_code = "a compiled library"

    def write(self, program: ExportedProgram, files: Sequence[Path], outputs: Sequence[str]) -> None:
        with quiet():
            torch._inductor.aoti_compile_and_package(program, package_path=str(files[0]))

    def open(self, files: Sequence[Path], how: Loading) -> Run:
        return _run_module(torch._inductor.aoti_load_package(str(files[0])))


def _run_module(module: Callable[[Tensor], Any]) -> Run:
    def run(images: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(module(images))

    return run


TARGETS: dict[str, Target] = {target.name: target for target in (Onnx(), OpenVino(), TorchExport(), AotInductor())}


def target_named(name: object) -> Target:
    """The target called ``name``.

    Raises:
        ValueError: if there is none, or its packages are not installed.
    """
    if not isinstance(name, str) or name not in TARGETS:
        raise ValueError(f"to must be one of {', '.join(TARGETS)}; got {shown(name)}.")
    TARGETS[name].require_installed()
    return TARGETS[name]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporters' own progress, warnings and logs away from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
