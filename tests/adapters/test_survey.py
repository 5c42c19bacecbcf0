"""Every ViT-like name of the installed timm is supported or refused with a reason; the docs say which."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import timm
import torch
import transformers

import foveate as fv
from foveate.adapters.survey import PLAIN, survey, vit_like_names
from foveate.adapters.timm_refused import REASONS
from foveate.cli.models import as_markdown, classes_as_markdown

DOCS = Path(__file__).parents[2] / "docs" / "models.md"


@cache
def found():
    return [state for state in survey() if state.library == "timm"]


def test_every_vit_like_name_is_supported_or_refused_with_a_reason():
    assert [state.name for state in found()] == list(vit_like_names())
    assert {state.state for state in found()} == {"supported", "refused"}
    assert all(state.reason for state in found())
    by_module = Counter((state.group, state.state) for state in found())
    refused = {group for group, state in by_module if state == "refused"}
    assert refused == {*REASONS, "vision_transformer"}, "what stays refused has windows, stages or other attention"
    assert by_module["vision_transformer", "refused"] == 3, "differential attention"


def test_names_that_are_like_a_vit_are_all_there():
    """A module that a later timm adds has to be looked at: it is a plain one, or is refused with a reason."""
    known = {*PLAIN, *REASONS}
    words = ("vit", "deit", "beit", "eva", "former", "swin", "volo", "hiera")
    others = {"clustr", "demo", "edgenext", "efficientvim", "hvt", "lvvit", "mambaout"}  # ours, or without attention
    modules = {m for m in timm.models.list_modules() if any(word in m for word in words)}
    assert modules - known - others == set()


@pytest.mark.parametrize("module", REASONS)
def test_what_is_refused_by_its_class_is_refused_when_it_is_built(module):
    with torch.device("meta"):
        model = timm.create_model(timm.list_models(module=module)[0])
    with pytest.raises(fv.UnsupportedModel, match="foveate does not support timm"):
        fv.inspect(model)


def test_a_pattern_chooses_names():
    assert [state.name for state in survey("deepseek")] == timm.list_models("*deepseek*")
    assert survey("no such name") == []
    assert [state.name for state in survey("YOLOS")] == [state.name for state in survey("*yolos*")] != []
    assert {state.state for state in survey("vit_d*ee_patch16_reg1_gap_256")} == {"refused"}


def test_the_docs_have_the_table_of_the_installed_timm():
    assert as_markdown(found()) in DOCS.read_text(), "run `foveate models --markdown` and copy its table"


def test_the_docs_have_the_table_of_transformers_classes():
    states = [state for state in survey() if state.library == "transformers"]
    assert classes_as_markdown(states) in DOCS.read_text(), "run `foveate models --markdown` and copy its second table"
    assert {state.name: state.state for state in states}["Qwen2_5_VLModel"] == "refused"
    missing = {s.name for s in states if s.state == "supported" and not hasattr(transformers, s.name)}
    assert missing == {"Qwen2VisionTransformerPretrainedModel"}, "only its module has it"
