"""int8: reductions stay in float32, and layers do not."""

from __future__ import annotations

import pytest
import torch

import foveate as fv
from foveate.deploy.graph import PlainOutputs, program_of
from foveate.deploy.quantize import _is_layer, _openvino_scores, write_int8
from foveate.deploy.targets import Onnx, OpenVino
from zoo import images, make


@pytest.fixture(scope="module")
def converted():
    model = fv.reduce_(make("timm-cls", 2), fv.ToMe(), fv.KeepRate(0.6, blocks=(0,)))
    return OpenVino().convert(program_of(PlainOutputs(model, None).eval(), images(2)), ["output"])


def test_all_that_chooses_tokens_and_no_layer_is_left_alone(converted):
    left_alone = {op.get_friendly_name() for op in _openvino_scores(converted)}
    operations = converted.get_ops()
    choosing = [op.get_friendly_name() for op in operations if op.get_type_name() in ("TopK", "CumSum", "Greater")]
    layers = [op for op in operations if _is_layer(op)]
    assert choosing
    assert set(choosing) <= left_alone
    assert sum(op.get_type_name() == "MatMul" for op in layers) == 2 * 4 + 1  # qkv, proj and MLP of two blocks; head
    assert not left_alone & {op.get_friendly_name() for op in layers}
    products = {op.get_friendly_name() for op in operations if op.get_type_name() == "MatMul" and not _is_layer(op)}
    assert len(products) == 2  # similarities, before the choice, and the merge after it
    assert products <= left_alone


def test_onnx_keeps_products_behind_an_activation_in_float32(tmp_path):
    """A few large values behind GELU take the 8 bits from all others."""
    onnx = pytest.importorskip("onnx")
    model, file = PlainOutputs(make("timm-cls", 2), None).eval(), tmp_path / "model.onnx"
    Onnx().write(program_of(model, images(2)), [file], ["output"])
    write_int8(Onnx(), model, [file], images(4), ["output"])
    graph = onnx.load(str(file)).graph
    made_by = {name: node for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    inputs = [made_by[node.input[0]].op_type for node in products]
    assert inputs.count("Gelu") == 2  # the second layer of the MLP, in two blocks
    assert inputs.count("DequantizeLinear") == 2 * 3 + 1  # qkv, proj and the first layer of the MLP; the head
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}


def test_int8_that_changes_most_decisions_is_refused(tmp_path, monkeypatch):
    class Wrong(torch.nn.Module):
        def forward(self, x):
            return (torch.zeros(x.shape[0], 7) + x.mean() * 0,)

    def spoil(target, module, files, held, outputs):
        target.write(program_of(Wrong(), held), files, outputs)

    monkeypatch.setattr("foveate.deploy.exporting.write_int8", spoil)
    model = make("timm-cls", 2)
    with pytest.raises(ValueError, match=r"int8 leaves only .* of the decisions on 5 images.*Nothing was written"):
        fv.export(model, tmp_path / "out", "torch-export", data=images(5), quantize="int8")
    assert not (tmp_path / "out" / "foveate.json").exists()
