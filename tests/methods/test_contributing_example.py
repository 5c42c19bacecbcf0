"""The example of CONTRIBUTING.md is run as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import foveate as fv
from foveate.methods.options import describe, parse
from foveate.methods.registry import is_method, list_methods, unregister
from zoo import DEPTH, PATCHES, images, make

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def loudest():
    (code,) = re.findall(r"## Add a method\n.*?```python\n(.*?)```", TEXT, re.DOTALL)
    module = ModuleType("contributing_example")
    sys.modules[module.__name__] = module  # a dataclass looks up its annotations there
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
        yield module.Loudest
    finally:
        del sys.modules[module.__name__]
        if hasattr(module, "Loudest"):
            unregister(module.Loudest)


def test_it_is_a_whole_method(loudest):
    assert "Loudest" in list_methods(kind="select")
    assert parse("loudest:power=1") == loudest(power=1.0)
    assert describe(loudest()) == {"name": "Loudest", "options": {"power": 2.0}}


def test_it_keeps_the_tokens_of_largest_norm(loudest):
    model, x = make("timm-cls"), images(2)
    whole = fv.cost(model).macs
    fv.reduce_(model, loudest(), fv.Keep({1: 20}))
    with torch.no_grad():
        assert model(x).isfinite().all()
        trace = fv.trace(model, x)
    assert trace.counts == (PATCHES, 20, 20, 20)[:DEPTH]
    assert fv.cost(model).macs < whole
    assert fv.features(model, x).isfinite().all()


def test_it_meets_a_budget_and_survives_saving(loudest, tmp_path):
    model, x = make("timm-cls").eval(), images(2)
    fv.reduce_(model, loudest(power=1.0), fv.Budget(0.7))
    with pytest.warns(UserWarning, match="cannot be rebuilt from plain data"):
        folder = fv.save(model, tmp_path / "saved")
    again = fv.load(folder, model=make("timm-cls")).eval()
    assert again.foveate.method == loudest(power=1.0)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x))


def test_it_leaves_nothing_behind():
    assert not is_method("Loudest")
