"""Names in published weight files of DynamicViT, HVT and LV-ViT, and what the same tensors are called here.

EViT's files have timm's names. No published code is needed: a file is a table of names and tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foveate.adapters.reduced import CHILD
from foveate.adapters.registry import reducer_of
from foveate.methods.dynamic_vit import Predictor

WRAPPED = "module."
"""What torch's DistributedDataParallel puts before every name."""
PREDICTOR = re.compile(r"score_predictor\.(\d+)\.(in_conv|out_conv)\.(\d+)\.(weight|bias)")
POOLED_POSITIONS = re.compile(r"blocks\.(\d+)\.pos_embed")
ENTRY_LAYERS = {"0": "norm", "1": "entry"}


def from_official(weights: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """``weights`` with every published name replaced by that of ``model``; other names stay.

    Raises:
        ValueError: if they hold predictors of DynamicViT that ``model`` has no place for.
    """
    if weights and all(name.startswith(WRAPPED) for name in weights):
        weights = {name.removeprefix(WRAPPED): tensor for name, tensor in weights.items()}
    blocks = _predictor_blocks(weights, model)
    known, stem = model.state_dict().keys(), getattr(model, "official_names", {})
    return {name if name in known else _renamed(name, stem, blocks): tensor for name, tensor in weights.items()}


def _renamed(name: str, stem: Mapping[str, str], blocks: Mapping[int, int]) -> str:
    if found := PREDICTOR.fullmatch(name):
        stage, part, layer, kind = found.groups()
        inner = ENTRY_LAYERS.get(layer, layer) if part == "in_conv" else f"exit.{layer}"
        return f"{CHILD}.learned.{blocks[int(stage)]}.{inner}.{kind}"
    if found := POOLED_POSITIONS.fullmatch(name):
        return f"{CHILD}.learned.{found[1]}.pos_embed"
    for theirs, ours in stem.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _predictor_blocks(weights: Mapping[str, Any], model: Any) -> dict[int, int]:
    """The block that each published predictor serves; empty where the weights hold none."""
    stages = sorted({int(found[1]) for name in weights if (found := PREDICTOR.fullmatch(name))})
    if not stages:
        return {}
    reducer = reducer_of(model)
    modules = {} if reducer is None else reducer.modules_by_block
    blocks = sorted(block for block, module in modules.items() if isinstance(module, Predictor))
    if len(blocks) != len(stages):
        raise ValueError(
            f"They hold {len(stages)} predictors of DynamicViT, and the model has {len(blocks)}. Reduce it first, by "
            f"DynamicViT() with a KeepRate at {len(stages)} blocks (the published models: 0.7 or 0.5, after a quarter, "
            "a half and three quarters of the blocks), then load them. The files do not hold the keep rate."
        )
    return dict(zip(stages, blocks, strict=True))
