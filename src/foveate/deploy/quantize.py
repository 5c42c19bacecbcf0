"""int8 by the runtimes' own tools: NNCF for OpenVINO, ONNX Runtime's static quantization, torchao for PyTorch."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foveate.deploy.graph import program_of
from foveate.deploy.targets import INPUT, OpenVino, Target, openvino_core, quiet
from foveate.methods.validation import shown

CALIBRATION_IMAGES = 256
TOOLS = {"openvino": "nncf", "onnx": "onnxruntime", "torch-export": "torchao", "aoti": "torchao"}
CHOOSERS = ("TopK", "ArgMax", "ArgMin")
"""Operations that choose tokens by a score."""
PRODUCTS = ("MatMul", "Gemm")
ACTIVATIONS = ("Gelu", "Relu", "Mul")
"""Operations of ONNX that end an activation function; GELU's other form, SiLU and gates end with a product."""


def check_quantize(quantize: object, target: Target, data: object) -> None:
    """Raise a ValueError unless ``quantize`` is None, or int8 with images to calibrate on and its tool installed."""
    if quantize is None:
        return
    if quantize != "int8":
        raise ValueError(f"quantize must be 'int8' or None, got {shown(quantize)}.")
    if data is None:
        raise ValueError("int8 is calibrated on images like those of later use. Pass data, e.g. a folder.")
    check_tool(target.name)


def check_tool(target: str) -> None:
    """Raise a ValueError that names the extra if the tool that makes int8 for ``target`` is missing."""
    tool = TOOLS[target]
    if importlib.util.find_spec(tool) is None:
        raise ValueError(
            f"int8 for {target} needs the package {tool}, which is not installed. "
            "Install the extra: pip install 'foveate[export]'."
        )


def write_int8(
    target: Target, module: nn.Module, files: Sequence[Path], images: Tensor, outputs: Sequence[str]
) -> None:
    """Replace the float32 ``files`` of ``module`` by int8.

    Args:
        target: what the files are.
        module: the model that was exported.
        files: they hold it in float32.
        images: calibration images.
        outputs: names of the outputs.
    """
    if isinstance(target, OpenVino):
        _openvino(files, images)
    elif target.name == "onnx":
        _onnx(files[0], images)
    else:
        _torchao(target, module, files, images, outputs)


def _openvino(files: Sequence[Path], images: Tensor) -> None:
    nncf, openvino = importlib.import_module("nncf"), importlib.import_module("openvino")
    model = openvino_core().read_model(files[0].read_bytes(), files[1].read_bytes())  # in memory: both are replaced
    # quantizing parts of a reduction left few decisions in trials; scores and thresholds may be rounded differently
    scores = [op.get_friendly_name() for op in _openvino_scores(model)]
    with quiet():
        quantized = nncf.quantize(
            model,
            nncf.Dataset([image.unsqueeze(0).numpy() for image in images]),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(images),
            ignored_scope=nncf.IgnoredScope(names=scores) if scores else None,
        )
    openvino.save_model(quantized, str(files[0]), compress_to_fp16=False)


def _openvino_scores(model: Any) -> list[Any]:
    """The operations of all reductions: what leads to a choice of tokens, and what is done with it, up to a layer."""
    choices = [op for op in model.get_ops() if op.get_type_name() in CHOOSERS]
    before = _reached(choices, lambda op: [port.get_source_output().get_node() for port in op.inputs()])
    after = _reached(choices, lambda op: [p.get_node() for out in op.outputs() for p in out.get_target_inputs()])
    return [op for op in (before | after).values() if op.get_type_name() not in ("Constant", "Result", "Parameter")]


def _reached(start: list[Any], neighbors: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Operations by name that are reached from ``start`` without passing a layer of the model."""
    found: dict[str, Any] = {op.get_friendly_name(): op for op in start}
    waiting = list(start)
    while waiting:
        for op in neighbors(waiting.pop()):
            if op.get_friendly_name() not in found and not _is_layer(op):
                found[op.get_friendly_name()] = op
                waiting.append(op)
    return found


def _is_layer(op: Any) -> bool:
    """Whether this is a product with weights, attention, a convolution or a norm."""
    if op.get_type_name() == "MatMul":
        return any(_is_weight(port.get_source_output().get_node()) for port in op.inputs())
    return op.get_type_name() in ("Convolution", "MVN", "ScaledDotProductAttention")


def _is_weight(node: Any) -> bool:
    while node.get_type_name() in ("Convert", "Reshape", "Transpose", "Multiply", "Subtract") and node.inputs():
        node = node.input(0).get_source_output().get_node()
    return node.get_type_name() == "Constant"


def _onnx(file: Path, images: Tensor) -> None:
    quantization = importlib.import_module("onnxruntime.quantization")
    preparing = importlib.import_module("onnxruntime.quantization.shape_inference")
    prepared, quantized = file.with_name("prepared.onnx"), file.with_name("quantized.onnx")
    try:
        with quiet():
            preparing.quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
            quantization.quantize_static(
                str(prepared),
                str(quantized),
                _reader(quantization, images),
                per_channel=True,
                op_types_to_quantize=list(PRODUCTS),
                nodes_to_exclude=_left_in_float(prepared),
                extra_options={"ActivationSymmetric": False},
            )
        quantized.replace(file)
    finally:
        prepared.unlink(missing_ok=True)
        quantized.unlink(missing_ok=True)


def _left_in_float(file: Path) -> list[str]:
    """Products that are no layer, as in attention and in reductions, and layers whose input is an activation.

    A few values of an activation are so large that 8 bits lose the others (docs/experiments/deploy.md).
    """
    graph = importlib.import_module("onnx").load(str(file), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    activations = {name for node in graph.node if node.op_type in ACTIVATIONS for name in node.output}
    products = [node for node in graph.node if node.op_type in PRODUCTS]
    return [node.name for node in products if node.input[1] not in weights or node.input[0] in activations]


def _reader(quantization: Any, images: Tensor) -> Any:
    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left: Iterator[Tensor] = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.left, None)
            return None if image is None else {INPUT: image.unsqueeze(0).numpy()}

    return Reader()


def _torchao(target: Target, module: nn.Module, files: Sequence[Path], images: Tensor, outputs: Sequence[str]) -> None:
    with quiet(), torch.no_grad():
        target.write(program_of(int8_in_pytorch(module), images), files, outputs)


def int8_in_pytorch(module: nn.Module) -> nn.Module:
    """A copy of ``module`` whose linear layers have weights of 8 bits; activations are rounded as they come."""
    torchao = importlib.import_module("torchao.quantization")
    smaller = copy.deepcopy(module)
    with quiet(), torch.no_grad():
        torchao.quantize_(smaller, torchao.Int8DynamicActivationInt8WeightConfig())
    return smaller
