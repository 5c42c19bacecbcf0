"""The examples run as they are, without network, and write what they say; the notebook runs cell by cell."""

import ast
import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch

import foveate as fv
from foveate.data.scenes import NUMBERS
from foveate.evaluation.speed import measure_speed
from foveate.report.compare import Comparison, compare

EXAMPLES = Path(__file__).parents[2] / "examples"
WRITES = {
    "make_it_faster": ["faster-model", "make-it-faster"],
    "choose_for_a_latency": ["choose-for-a-latency"],
    "see_what_it_keeps": ["what-it-keeps.png"],
    "dense_features": ["dense-features.png"],
}
ENDS_IN = {
    "make_it_faster": "Report: make-it-faster/index.html",
    "choose_for_a_latency": "Report: choose-for-a-latency/index.html",
    "see_what_it_keeps": "Drawn in what-it-keeps.png.",
    "dense_features": "Drawn in dense-features.png.",
}


def small_model():
    """Untrained, and so small that the examples take no time."""
    torch.manual_seed(0)
    small = {"img_size": 96, "patch_size": 12, "embed_dim": 64, "depth": 8, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=len(NUMBERS), **small).eval()


def briefly(*given, **options):
    """The comparison an example asks for, at its first budget, on a few images."""
    less = {"limit": 6, "seconds": 0.001, "budgets": options["budgets"][:1]}
    return compare(*given, **({"batch_size": 2} | options | less))


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty folder to run in, no network, a model that takes no time."""
    demo = SimpleNamespace(demo_model=small_model, demo_classes=lambda: NUMBERS)
    monkeypatch.setitem(sys.modules, "foveate.models.demo", demo)
    monkeypatch.setattr(fv, "compare", briefly)
    monkeypatch.setattr(fv, "measure_speed", lambda *given, **options: measure_speed(*given, **options | {"rounds": 1}))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(WRITES)
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["first_steps.ipynb"]


@pytest.mark.parametrize("name", WRITES)
def test_an_example_runs_without_network(name, offline, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--offline"])
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count("\n# %% ") >= 2
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "built-in model on" in printed
    assert printed.endswith(f"{ENDS_IN[name]}\n")
    assert sorted(os.listdir(offline)) == WRITES[name]


def test_the_notebook_runs_and_shows_something(offline, capsys):
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "strip the outputs"
    variables, shown = {}, []
    for cell in cells:
        shown.append(run_cell("".join(cell["source"]), variables))
    pictures = [value for value in shown if callable(getattr(value, "_repr_png_", None))]
    assert len(pictures) == 3
    assert any(isinstance(value, Comparison) for value in shown)
    assert all(value._repr_png_().startswith(b"\x89PNG") for value in pictures)
    assert " of 5 decisions are unchanged" in capsys.readouterr().out
    assert os.listdir(offline) == ["fast-model"]


def run_cell(source, variables):
    """Run a cell as a notebook does, and return what it would display."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(ast.unparse(tree), variables)
    return None if last is None else eval(ast.unparse(last), variables)
