"""int8: reductions stay in float32, and layers do not."""

from __future__ import annotations

import pytest
import torch

import foveate as fv
from foveate.deploy.graph import PlainOutputs, program_of
from foveate.deploy.quantize import _is_layer, _openvino_scores
from foveate.deploy.targets import OpenVino
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
