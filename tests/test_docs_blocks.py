"""Every Python block of README, CONTRIBUTING and docs runs, with stand-ins for what a reader brings.

A pretrained model becomes a small one, ``photos`` a folder of a few images. Blocks that need more than that are listed
with the reason, so that a new one has to be added on purpose.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

import foveate as fv
from foveate.data.preprocessing import Preprocessing
from foveate.evaluation.speed import measure_speed
from foveate.report.compare import compare
from foveate.tuning import recover, search
from foveate.tuning.constraints import NAMES, Constraints
from test_docs_run import PYTHON, ROOT, RUN_AS_A_WHOLE, Block

NOT_RUN = {
    (
        "CONTRIBUTING.md",
        "class Loudest",
    ): "registers a method; tests/test_check_method.py runs it in a process of its own",
    ("README.md", "fv.train("): "a training run",
    ("docs/training.md", "fv.train("): "a training run",
    ("docs/training.md", "runs/dynamicvit/best"): "the result of a training run",
    ("docs/data.md", "wds:https://"): "a server",
    ("docs/official-weights.md", "dynamic-vit.pth"): "a file of the authors",
    ("docs/scale.md", 'fv.Predictor("deit_small_patch16_224", pretrained=True, red'): "the hub",
    ("docs/deploy.md", "fv.export("): "an export, which takes a minute; tests/deploy makes smaller ones",
    ("docs/scale.md", "pandas.read_parquet"): "pandas, and a finished run",
    ("docs/scale.md", 'ray.data.read_images("photos").map_batches(predictor'): "Ray",
    ("docs/scale.md", "class Work"): "Ray and Daft",
    ("docs/scale.md", "fully_shard("): "a process group",
}
"""What a block needs, by its page and a part of its text."""
FROM_A_HUB = 4
"""Blocks with pretrained weights: they run with a small model in place of the hub's."""
REDUCES = ("fv.reduce_(model", "fv.reduced(model", ".apply_(model")
SMALLER = {"224, 224": "56, 56", "range(300)": "range(1)", "batch_size=256": "batch_size=2", "workers=8": "workers=0"}
PAGES_RUN_ELSEWHERE = {str(page.relative_to(ROOT)) for page in RUN_AS_A_WHOLE}
BLOCKS = [block for block in PYTHON if block.page not in PAGES_RUN_ELSEWHERE]


def reason(block: Block) -> str | None:
    found = [why for (page, part), why in NOT_RUN.items() if page == block.page and part in block.text]
    return found[0] if found else None


RUN = [block for block in BLOCKS if reason(block) is None]


def small(*_: object, **__: object) -> torch.nn.Module:
    """As deep as a DeiT, with as many patches, and 16 numbers for each."""
    torch.manual_seed(0)
    size = {"img_size": 56, "patch_size": 4, "embed_dim": 16, "depth": 12, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **size).eval()


def create_model(name: str, pretrained: bool = False, **options: Any) -> torch.nn.Module:
    return small() if pretrained else CREATE(name, **options)


CREATE = timm.create_model


def briefly(model: Any, data: Any, **options: Any) -> Any:
    return compare(model, data, methods=["ToMe"], budgets=(0.7,), limit=4, seconds=0.001, batch_size=2)


@cache
def noise() -> torch.Tensor:
    """As many images as a search and a tuning need."""
    return torch.randn(64, 3, 56, 56, generator=torch.Generator().manual_seed(0))


@cache
def found_briefly() -> Any:
    few: dict[str, Any] = {"calibration": 32, "validation": 32, "trials": 1, "seconds": 0.05}
    return search(small(), noise(), macs=0.8, methods=["TopK"], **few)


def search_briefly(*given: Any, **options: Any) -> Any:
    """What a short search finds, if the options are those of a search."""
    bound = inspect.signature(search).bind(*given, **options).arguments
    Constraints(**{name: bound[name] for name in NAMES if name in bound})
    return found_briefly()


def recover_briefly(model: Any, images: Any, **options: Any) -> Any:
    inspect.signature(recover).bind(model, images, **options)
    return recover(model, noise(), steps=1, minutes=5)


def stand_ins() -> dict[str, Any]:
    """What a page's blocks use and do not make."""
    model, images = small(), torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(0))
    return {
        "fv": fv,
        "timm": timm,
        "Path": Path,
        "cross_entropy": cross_entropy,
        "model": model,
        "trained": small(),
        "reduced_model": fv.reduce_(small(), "ToMe", 0.65),
        "images": images,
        "batch": images,
        "batches": [images, images],
        "labels": torch.tensor([0, 1]),
        "loader": [(images, torch.tensor([0, 1]))],
        "pictures": [Image.new("RGB", (56, 56))] * 2,
        "names": ["a", "b"],
        "strength": 0.1,
        "optimizer": types.SimpleNamespace(step=lambda: None, zero_grad=lambda: None),
        "transform": Preprocessing.of(model).evaluation(),
    }


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few images in two classes, and ``imagenette`` and ``photo.jpg`` beside it."""
    folder = tmp_path_factory.mktemp("reader")
    for number in range(4):
        for place in ("photos", "imagenette/train", "imagenette/val"):
            path = folder / place / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (60 * number, 30, 200)).save(path)
    Image.new("RGB", (64, 64)).save(folder / "photo.jpg")
    return folder


def test_what_is_not_run_is_there_and_counted() -> None:
    left = [block for block in BLOCKS if reason(block) is not None]
    assert len(left) == len(NOT_RUN)
    assert len([block for block in RUN if "pretrained=True" in block.text]) == FROM_A_HUB
    assert len(RUN) > 50


@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_block_runs(block: Block, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr(fv, "compare", briefly)
    monkeypatch.setattr(fv, "search", search_briefly)
    monkeypatch.setattr(fv, "recover", recover_briefly)
    monkeypatch.setattr(fv, "measure_speed", lambda *given, **own: measure_speed(*given, **own, rounds=1, warmup=1))
    module = types.ModuleType("reader")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    scope = module.__dict__
    scope.update(stand_ins())
    if "render(comparison" in block.text:
        scope["comparison"] = briefly(scope["model"], scope["images"])
    code = block.text
    for written, smaller in SMALLER.items():
        code = code.replace(written, smaller)
    for statement in ast.parse(code).body:
        text = ast.unparse(statement)
        if any(part in text for part in REDUCES) and fv.is_reduced(scope["model"]):
            fv.restore_(scope["model"])  # each line starts from an unreduced model, as the pages say
        exec(text, scope)
