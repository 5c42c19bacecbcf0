"""The examples run as they are, without network, and write what they say."""

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch

import foveate as fv
from foveate.data.scenes import KINDS
from foveate.report.compare import compare

EXAMPLES = Path(__file__).parents[2] / "examples"
WRITES = {
    "make_it_faster": ["make-it-faster"],
    "choose_for_a_latency": [],
    "see_what_it_keeps": ["kept-by-evit.png", "kept-by-tome.png", "kept-by-topk.png"],
    "dense_features": ["dense-features.png"],
}
SAYS = {
    "make_it_faster": "built-in model on built-in scenes",
    "choose_for_a_latency": "built-in model on built-in scenes",
    "see_what_it_keeps": "built-in model on a built-in scene",
    "dense_features": "The weights are random",
}


def small_model():
    """Untrained, and so small that the examples take no time."""
    torch.manual_seed(0)
    small = {"img_size": 96, "patch_size": 12, "embed_dim": 64, "depth": 8, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=len(KINDS), **small).eval()


def briefly(*given, **options):
    """The comparison an example asks for, on a few images."""
    return compare(*given, **({"batch_size": 2} | options | {"limit": 6, "seconds": 0.001}))


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(WRITES)


@pytest.mark.parametrize("name", WRITES)
def test_an_example_runs_without_network(name, tmp_path, monkeypatch, capsys):
    demo = SimpleNamespace(demo_model=small_model, demo_classes=lambda: KINDS)
    monkeypatch.setitem(sys.modules, "foveate.models.demo", demo)
    monkeypatch.setattr(fv, "compare", briefly)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "argv", [name, "--offline"])
    monkeypatch.chdir(tmp_path)
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count("\n# %% ") >= 2
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == WRITES[name]
