"""Errors of a newcomer lead on: each says what to write instead."""

import ast
import re
from dataclasses import dataclass

import pytest
import torch
from PIL import Image
from torch import nn

import foveate as fv
from foveate.core import keep_topk
from foveate_cli.main import main
from small_runs import make_images
from zoo import images, make


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = fv.models.load_model("test_vit", options={"num_classes": 5})
    return str(fv.save(model, tmp_path_factory.mktemp("hints") / "model"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("photos"))


def answer(capsys, *words):
    code = main(list(words))
    return code, capsys.readouterr().err


def test_a_file_of_labels_without_splits_says_how_to_take_all(capsys, tmp_path, saved, photos):
    rows = [f"{path.relative_to(photos)},{path.parent.name}" for path in sorted((photos / "val").glob("*/*.png"))]
    (photos / "labels.csv").write_text("\n".join(["file,label", *rows]))
    given = ("eval", saved, "--data", str(photos / "labels.csv"), "--untrained", "--workers", "0")
    code, err = answer(capsys, *given)
    assert (code, "evaluate all images: --split all" in err) == (2, True)
    code, err = answer(capsys, *given, "--split", "all")
    assert (code, "--classes FILE (classes=[...] in Python)" in err) == (2, True)
    (tmp_path / "names.txt").write_text("bright\ndark\na\nb\nc\n")
    assert answer(capsys, *given, "--split", "all", "--classes", str(tmp_path / "names.txt"))[0] == 0


class Named(nn.Module):
    """A model whose part has a name that is not a Python name."""

    def __init__(self):
        super().__init__()
        self.add_module("the encoder", make("timm-cls"))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Identity(), make("timm-cls")),
        nn.Sequential(nn.Sequential(make("timm-cls")), nn.Identity()),
        nn.ModuleDict({"vit": make("timm-cls")}),
        nn.ModuleDict({"class": make("timm-cls")}),
        nn.ModuleList([make("timm-cls")]),
        Named(),
    ],
    ids=["Sequential", "nested", "ModuleDict", "keyword", "ModuleList", "name with a space"],
)
def test_the_part_to_reduce_is_named_in_valid_python(model):
    with pytest.raises(fv.UnsupportedModel) as error:
        fv.reduce_(model, fv.ToMe(), 0.7)
    part = re.search(r"reduce_\((.*), \.\.\.\)", str(error.value))[1]
    ast.parse(part)
    assert isinstance(eval(part), type(make("timm-cls")))


@pytest.mark.parametrize("order", ["images last", "images first", "options between"])
def test_show_takes_its_arguments_in_any_order(capsys, tmp_path, saved, photos, order):
    picture = str(next((photos / "val").glob("*/*.png")))
    options = ["--method", "tome", "--keep-rate", "0.6", "--out", str(tmp_path / "drawn.png")]
    line = {
        "images last": ["tokens", *options, saved, picture],
        "images first": ["tokens", saved, picture, *options],
        "options between": ["tokens", saved, *options, picture],
    }[order]
    assert answer(capsys, "show", *line) == (0, "")
    assert (tmp_path / "drawn.png").is_file()


@pytest.mark.parametrize("size", [224, "224", (224, 224), [3, 224], 2.5])
def test_an_image_size_of_another_form_is_shown_the_right_one(size):
    with pytest.raises(ValueError, match=r"\(channels, height, width\), such as \(3, 224, 224\); got"):
        fv.cost(make("timm-cls"), size)


@pytest.mark.parametrize("call", [fv.trace, fv.features])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Image.new("RGB", (24, 24)), "got a Image. Prepare pictures"),
        ([Image.new("RGB", (24, 24))], "got a list. Prepare pictures"),
        (torch.zeros(3, 24, 24), r"got shape \(3, 24, 24\). A single image is images.unsqueeze\(0\)"),
        (torch.zeros(1, 3, 24, 24).numpy(), "got a ndarray"),
    ],
    ids=["picture", "list", "one image", "array"],
)
def test_what_is_not_a_batch_of_images_is_refused_with_a_hint(call, given, words):
    with pytest.raises(ValueError, match=words):
        call(make("timm-cls"), given)


def test_a_list_of_blocks_is_taken_or_refused_in_words():
    model = fv.reduce_(make("timm-cls"), fv.ToMe(), 0.7)
    assert len(fv.features(model, images(2), block=[0, 2])) == 2
    for look in (fv.trace(model, images(2)).after, fv.trace(model, images(2)).owner):
        with pytest.raises(TypeError, match="block must be an integer, got list"):
            look([0, 1])


@dataclass(frozen=True)
class Loudest(fv.Method):
    """The example of CONTRIBUTING, without its decorator."""

    site = fv.ToMe.site
    kind = "select"

    def assign(self, view, keep):
        return keep_topk(view.patches.norm(dim=-1), keep)


def test_an_unregistered_method_works_and_is_not_stored(tmp_path, saved):
    model = fv.reduce_(fv.load(saved), Loudest(), 0.7)
    assert model(torch.zeros(2, *fv.inspect(model).image_size)).shape == (2, 5)
    assert str(fv.Reduction(Loudest(), fv.KeepRate(0.7))).startswith("Loudest")
    with pytest.raises(ValueError, match=r"Loudest is not registered .* Decorate its class with @foveate"):
        fv.save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(TypeError, match=r"an instance such as ToMe\(\)"):
        fv.reduce_(make("timm-cls"), Loudest, 0.7)


SCORES = {
    "cls_attn": lambda view: view.cls_attn,
    "attn_received": lambda view: torch.log(view.attn_received),
    "attn_from_others": lambda view: torch.add(1, other=view.attn_from_others),
    "keys": lambda view: view.keys.norm(dim=-1).mean(dim=1),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_forgotten_need_says_what_to_override(name):
    class Forgetful(Loudest):
        def assign(self, view, keep):
            return keep_topk(SCORES[name](view), keep)

    words = (
        rf"reads view\.{name}, which was not computed\. Override needs\(self, has_cls\) .* frozenset\({{'{name}'}}\)"
    )
    with pytest.raises(ValueError, match=words):
        fv.reduce_(make("timm-cls"), Forgetful(), 0.7)(images(2))
