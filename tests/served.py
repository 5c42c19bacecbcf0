"""Exported models in the runtimes that users serve them with."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import onnxruntime
import openvino
import torch
from torch import Tensor, nn

BATCH = {0: torch.export.Dim("batch", min=1, max=64)}
Run = Callable[..., list[Tensor]]


def program_of(model: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, (images,), dynamic_shapes=(BATCH,))


def in_onnxruntime(program: torch.export.ExportedProgram) -> Run:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(program, dynamo=True, opset_version=18, verbose=False, optimize=False).save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options)
    names = [entry.name for entry in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(out) for out in session.run(None, given)]

    return run


def in_openvino(program: torch.export.ExportedProgram, batch: int | None = None) -> Run:
    """``batch``: the only batch size it will get; OpenVINO then chooses other kernels."""
    model = openvino.convert_model(program)
    if batch is not None:
        shapes = [argument.shape for argument in program.example_inputs[0]]
        model.reshape({number: [batch, *shape[1:]] for number, shape in enumerate(shapes)})
    how = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", how)
    return lambda *inputs: [torch.from_numpy(out.copy()) for out in compiled([x.numpy() for x in inputs]).values()]


RUNTIMES: dict[str, Callable[[torch.export.ExportedProgram], Run]] = {
    "onnxruntime": in_onnxruntime,
    "openvino": in_openvino,
}
