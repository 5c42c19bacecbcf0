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
Run = Callable[[Tensor], list[Tensor]]


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
    name = session.get_inputs()[0].name
    return lambda images: [torch.from_numpy(out) for out in session.run(None, {name: images.numpy()})]


def in_openvino(program: torch.export.ExportedProgram) -> Run:
    compiled = openvino.Core().compile_model(
        openvino.convert_model(program), "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    )
    return lambda images: [torch.from_numpy(out.copy()) for out in compiled(images.numpy()).values()]


RUNTIMES: dict[str, Callable[[torch.export.ExportedProgram], Run]] = {
    "onnxruntime": in_onnxruntime,
    "openvino": in_openvino,
}
