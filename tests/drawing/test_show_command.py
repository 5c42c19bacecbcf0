"""``foveate show``: refused before the work where it can be, and a file is written whole or not at all."""

import pytest
import timm
import torch
from PIL import Image

import foveate as fv
from foveate.cli import show
from foveate.drawing.features import feature_maps
from foveate.drawing.inputs import evaluating, title
from foveate_cli.main import main
from zoo import make


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.new("RGB", (40, 30), "red").save(path)
    return path


@pytest.fixture
def drawn(monkeypatch):
    """Replace every picture by a red square, and collect the names of the models drawn."""
    seen = []

    def square(model, images, *, name):
        """A red square."""
        seen.append(name)
        return Image.new("RGB", (8, 8), "red")

    monkeypatch.setattr(show, "all_pictures", lambda: {"features": square})
    return seen


def run(photo, *options):
    return main(["show", "features", "test_vit", str(photo), *map(str, options)])


@pytest.mark.parametrize(
    ("name", "words"),
    [("x.psd", "image format that can be written"), ("x", "can be written"), ("folder.png", "is a directory")],
)
def test_a_target_that_cannot_be_written_is_refused_before_the_work(name, words, photo, tmp_path, drawn, capsys):
    (tmp_path / "folder.png").mkdir()
    assert run(photo, "--out", tmp_path / name) == 2
    assert words in capsys.readouterr().err
    assert drawn == []
    assert sorted(f.name for f in tmp_path.iterdir()) == ["folder.png", "photo.png"]


@pytest.mark.parametrize("option", ["--at", "--channels", "--stage"])
def test_an_option_of_another_picture_is_refused(option, photo, drawn, capsys):
    assert run(photo, option, 1) == 2
    assert f"features has no {option}. Pictures with {option}: none." in capsys.readouterr().err
    assert drawn == []


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_the_old_file_alone(error, photo, tmp_path, monkeypatch, drawn):
    target = tmp_path / "out.png"
    Image.new("RGB", (4, 4), "blue").save(target)
    before = target.read_bytes()

    def fail(image, path, *args):
        path.write_bytes(b"half a pict")
        raise error

    monkeypatch.setattr(Image.Image, "save", fail)
    assert run(photo, "--out", target) == (2 if isinstance(error, OSError) else 130)
    assert target.read_bytes() == before
    assert set(tmp_path.iterdir()) == {photo, target}


def test_the_old_file_is_there_until_the_new_one_is_complete(photo, tmp_path, monkeypatch, drawn):
    target = tmp_path / "out.png"
    target.write_bytes(b"old")
    save, during = Image.Image.save, []

    def watched(image, path, *args):
        save(image, path, *args)
        during.append(target.read_bytes())

    monkeypatch.setattr(Image.Image, "save", watched)
    assert run(photo, "--out", target) == 0
    assert during == [b"old"]
    with Image.open(target) as new:
        assert new.size == (8, 8)
    assert set(tmp_path.iterdir()) == {photo, target}


def test_random_weights_are_named(photo, tmp_path, drawn):
    plain, pooled = fv.save(make("torchvision"), tmp_path / "plain"), tmp_path / "pooled"
    fv.save(fv.reduce_(make("torchvision"), fv.HVTPool(2)), pooled)
    out = ["--out", str(tmp_path / "out.png")]
    assert run(photo, *out) == 0
    for model, options in ((plain, []), (plain, ["--method", "hvt"]), (pooled, []), (pooled, ["--method", "hvt"])):
        assert main(["show", "features", str(model), str(photo), *options, *out]) == 0
    endings = ["test_vit (untrained)", "plain", "plain (HVTPool untrained)", "pooled", "pooled (HVTPool untrained)"]
    assert drawn == endings


def test_modes_come_back_after_a_failure():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout()).train()
    model[1].eval()

    def drawing():
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        drawing()
    assert [module.training for module in model.modules()] == [True, True, False]


def test_titles_name_method_and_schedule_in_words():
    model = make("timm-cls")
    assert title(model, "toy") == "toy: unreduced"
    fv.reduce_(model, fv.EViT(fuse=False), fv.KeepRate(0.6, blocks=(1, 2)))
    assert title(model, "toy") == "toy: EViT:fuse=false, keep-rate 0.6 at 1,2"


@pytest.mark.parametrize("picture", ["features", "tokens"])
def test_a_model_with_nan_weights_is_not_drawn(picture, capsys, tmp_path):
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", **small)
    model.blocks[1].mlp.fc1.weight.data.fill_(float("nan"))
    fv.save(model, tmp_path / "nan")
    Image.new("RGB", (32, 32)).save(tmp_path / "photo.png")
    command = ["show", picture, str(tmp_path / "nan"), str(tmp_path / "photo.png"), "--out", str(tmp_path / "x.png")]
    assert main([*command, "--method", "topk", "--keep-rate", "0.5"]) == 2
    assert "The weights blocks.1.mlp.fc1.weight are NaN or infinite" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_features_that_overflow_are_not_drawn():
    model = make("timm-cls", 2)
    model.blocks[1].mlp.fc2.weight.data.fill_(3e38)
    with pytest.raises(ValueError, match="The features after block 1 are NaN or infinite"):
        feature_maps(model, torch.randn(1, 3, 24, 24), [1])
