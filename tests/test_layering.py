"""Dependencies point one way. A failure names the file, the import, and the rule it broke."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import foveate

SOURCE = Path(foveate.__file__).parent

# from the ground up; a layer may import itself and everything below
ROWS = (
    "core",
    "registries",
    "methods",
    "schedules",
    "schedules_text",
    "costs",
    "plans",
    "reductions",
    "adapters",
    "api",
    "files",
    "storage",
    "models",
    "checks",
    "foveate",  # the package itself: what it offers is made of the rows below
    "data",
    "drawing",
    "tasks",
    "evaluation",
    "training",
    "deploy",
    "tuning",
    "scale",
    "report",
    "tables",
    "cli",
)
RANK = {layer: rank for rank, layer in enumerate(ROWS)}
MODEL_LIBRARIES = {"timm", "transformers", "torchvision"}
MAY_IMPORT_MODELS = {"adapters", "models"}
NO_MODELS = (
    *("timm.data", "timm.optim", "timm.scheduler", "timm.utils"),
    *("torchvision.datasets", "torchvision.transforms", "torchvision.tv_tensors"),
)
"""Parts of these libraries that know no model, for everyone."""
MOST_LINES = 400
LAZY = {
    ("foveate", f"foveate.{module}")
    for module in ("report.compare", "evaluation", "training", "deploy", "tuning", "scale")
}
"""``fv.compare`` and its like are jobs offered beside the verbs; the package imports them on first use."""
LAZY |= {("reductions", "foveate.adapters")}
"""``Reduction.apply_`` is a method of the value, and the engine that carries it out is built on the value."""


def layer_of(path: Path, root: Path) -> str:
    first = path.relative_to(root).parts[0].removesuffix(".py")
    return {"__init__": "foveate", "__main__": "cli"}.get(first, first)


def imported_modules(path: Path, root: Path) -> list[tuple[int, str]]:
    """(line, absolute module) of every import in a file, those inside functions and type checks included."""
    package = ("foveate", *path.relative_to(root).parts[:-1])
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            # `from foveate import core` names a layer; `from foveate import ToMe` names the package
            names = [f".{alias.name}" if module == "foveate" else "" for alias in node.names]
            found += [(node.lineno, module + name) for name in names]
        elif isinstance(node, ast.Call) and _called_name(node) in ("import_module", "__import__"):
            found += [(node.lineno, a.value) for a in node.args if isinstance(a, ast.Constant)]
    return found


def _called_name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def own_layer(module: str) -> str:
    """The layer a module of ours belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "foveate"


def broken_rules(root: Path, only: str | None = None) -> list[str]:
    """One sentence for every import, in ``only`` one layer or in all, that points the wrong way."""
    broken = []
    for path in sorted(root.rglob("*.py")):
        layer = layer_of(path, root)
        if only in (None, layer):
            for line, module in imported_modules(path, root):
                rule = broken_rule(layer, module)
                broken += [f"{path.relative_to(root)}:{line} imports {module}: {rule}"] if rule else []
    return broken


def broken_rule(layer: str, module: str) -> str | None:
    """What is wrong with ``layer`` importing ``module``."""
    top = module.split(".")[0]
    if (layer, module) in LAZY:
        return None
    if top == "foveate" and RANK[own_layer(module)] > RANK[layer]:
        return f"{layer} may not import {own_layer(module)}, which is built on it"
    known = any(module == part or module.startswith(f"{part}.") for part in NO_MODELS)
    if top in MODEL_LIBRARIES and not known and layer not in MAY_IMPORT_MODELS:
        return f"{layer} may not know a model library"
    if layer == "core" and top not in {"foveate", "torch", *sys.stdlib_module_names}:
        return "core imports torch and nothing else"
    return None


def without_layer(root: Path) -> list[str]:
    return [str(p.relative_to(root)) for p in sorted(root.rglob("*.py")) if layer_of(p, root) not in RANK]


def oversized(root: Path) -> list[str]:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(root.rglob("*.py"))}
    return [f"{p.relative_to(root)}: {n} lines, more than {MOST_LINES}" for p, n in lines.items() if n > MOST_LINES]


@pytest.mark.parametrize("layer", RANK)
def test_dependencies_point_one_way(layer):
    broken = broken_rules(SOURCE, layer)
    assert not broken, "\n" + "\n".join(broken)


def test_jobs_are_imported_when_asked_for_and_only_then():
    script = """import sys, foveate
jobs = ("foveate.report", "foveate.evaluation", "foveate.training", "foveate.tasks")
assert not any(module.startswith(jobs) for module in sys.modules)
assert all(callable(job) for job in (foveate.compare, foveate.measure_speed, foveate.train))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_file_belongs_to_a_layer():
    assert not without_layer(SOURCE), f"give these a row in {Path(__file__).name}: {', '.join(without_layer(SOURCE))}"


def test_files_stay_readable():
    assert not oversized(SOURCE), "\n" + "\n".join(oversized(SOURCE))


def test_nothing_is_put_into_a_drawer_called_utils():
    drawers = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("utils*") if path.suffix in ("", ".py")]
    assert not drawers, f"name these after what they do: {', '.join(drawers)}"


def test_the_walk_sees_the_whole_package():
    layers = {layer_of(path, SOURCE) for path in SOURCE.rglob("*.py")}
    assert {"core", "methods", "schedules", "costs", "reductions", "adapters", "api", "foveate"} <= layers
    modules = {module for _, module in imported_modules(SOURCE / "api.py", SOURCE)}
    assert {"torch", "foveate.adapters", "foveate.schedules"} <= modules


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        ("core/new.py", "from foveate.methods import ToMe", "core may not import methods"),
        ("core/new.py", "from ..methods.base import Site", "core may not import methods"),
        ("core/new.py", "import numpy", "core imports torch and nothing else"),
        ("core/new.py", "import timm.layers", "core may not know a model library"),
        ("methods/new.py", "from foveate.schedules import Keep", "methods may not import schedules"),
        ("methods/new.py", "from foveate import ToMe", "methods may not import foveate"),
        ("schedules.py", "import foveate.costs", "schedules may not import costs"),
        ("costs.py", "def f():\n    from foveate.adapters import encode", "costs may not import adapters"),
        ("adapters/new.py", "from foveate import api", "adapters may not import api"),
        ("adapters/deep/new.py", "from ...api import reduce_", "adapters may not import api"),
        ("api.py", "from foveate.report import speed", "api may not import report"),
        ("api.py", "from torchvision import ops", "api may not know a model library"),
        ("api.py", "import importlib\nimportlib.import_module('foveate.training')", "api may not import training"),
        ("data/new.py", "from foveate.tasks import Task", "data may not import tasks"),
        ("tasks/new.py", "from foveate.evaluation import Progress", "tasks may not import evaluation"),
        ("evaluation/new.py", "from foveate.training import train", "evaluation may not import training"),
        ("training/new.py", "from foveate.report.compare import compare", "training may not import report"),
        ("report/new.py", "from foveate.tables import all_tables", "report may not import tables"),
        ("tables/new.py", "from foveate.cli.output import say", "tables may not import cli"),
        ("evaluation/new.py", "import transformers", "evaluation may not know a model library"),
        ("training/new.py", "import timm", "training may not know a model library"),
    ],
)
def test_a_broken_rule_is_named_with_its_file(tmp_path, file, text, rule):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (found,) = broken_rules(tmp_path)
    assert found.startswith(file)
    assert rule in found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/new.py", "import math\nimport torch.nn\nfrom foveate.core.select import keep_topk\nfrom . import noise"),
        ("methods/new.py", "from foveate import core\nfrom foveate.core import pool\nimport torch"),
        ("adapters/new.py", "import timm\nfrom foveate.costs import Plan"),
        ("report/new.py", "import foveate\nfrom foveate import cost\nfrom foveate.evaluation import measure_speed"),
        ("training/new.py", "from timm.optim import create_optimizer_v2\nimport torchvision.datasets"),
        ("cli/main.py", "from foveate.training import loop\nfrom foveate import __version__"),
        ("__init__.py", "from foveate.api import reduce_"),
    ],
)
def test_what_the_layers_allow_is_not_complained_about(tmp_path, file, text):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert broken_rules(tmp_path) == []


def test_a_file_in_no_layer_is_named(tmp_path):
    for name in ("attic.py", "api.py", "cli/main.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert without_layer(tmp_path) == ["attic.py"]


def test_a_file_that_is_too_long_is_named(tmp_path):
    (tmp_path / "short.py").write_text("x = 1\n" * MOST_LINES)
    (tmp_path / "long.py").write_text("x = 1\n" * (MOST_LINES + 1))
    assert oversized(tmp_path) == ["long.py: 401 lines, more than 400"]
