"""``fv.export`` and ``fv.load_exported``: verified, whole or not there, and nothing in a folder is executed."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from foveate.data.preprocessing import Preprocessing
from foveate.deploy import targets
from foveate.deploy.graph import PixelInput
from foveate.deploy.parity import compare
from zoo import images, make

METHOD, SCHEDULE = fv.ToMe(), fv.KeepRate(0.6, blocks=(0,))
NAMES = [f"class {number}" for number in range(7)]


def model_of(family="timm-cls"):
    return fv.reduce_(make(family, 2), METHOD, SCHEDULE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An ONNX export, made once; tests that change it copy it."""
    return fv.export(model_of(), tmp_path_factory.mktemp("out") / "fast", "onnx", data=images(3), classes=NAMES)


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_it_runs_with_the_call_of_a_model_for_any_batch(folder):
    loaded, model = fv.load_exported(folder), model_of()
    for batch in (1, 5):
        with torch.no_grad():
            torch.testing.assert_close(loaded(images(batch)), model(images(batch)), rtol=1e-4, atol=1e-5)
    assert loaded.classes == NAMES
    assert loaded.reduction == fv.Reduction(METHOD, SCHEDULE)
    assert "onnx" in repr(loaded)


def test_the_manifest_says_what_was_made_and_how_it_was_verified(folder):
    noted = json.loads((folder / "foveate.json").read_text())
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == ["foveate.json", "model.onnx"]
    assert noted["input"] == {"name": "images", "dtype": "float32", "size": [3, 24, 24], "layout": "NCHW"}
    assert noted["outputs"] == ["output"]
    assert noted["verified"]["images"] == 3
    assert noted["verified"]["largest_difference"] < 1e-5
    assert noted["versions"].keys() >= {"foveate", "torch", "onnx", "onnxruntime"}


def test_outputs_with_names_and_bytes_as_input(tmp_path):
    model = model_of("hf-dinov2")
    fv.export(model, tmp_path / "a", "torch-export", input_size=(40, 60), images=4)
    with pytest.raises(ValueError, match=r"pickles: loading it may run code.*trusted=True"):
        fv.load_exported(tmp_path / "a")
    loaded = fv.load_exported(tmp_path / "a", trusted=True)
    pixels = torch.randint(0, 256, (3, 40, 60, 3), dtype=torch.uint8)
    prepared = PixelInput(Preprocessing.of(model), 40, 60)(pixels)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels).logits, model(prepared).logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(AttributeError, match="The outputs are logits"):
        loaded(pixels).nothing  # noqa: B018
    with pytest.raises(ValueError, match=r"\(batch, 40, 60, 3\) of torch.uint8, got \(3, 3, 24, 24\)"):
        loaded(images(3))


@pytest.mark.parametrize("size", [(40, 60), (24, 24), (300, 200)])
@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_preprocessing_in_the_graph_equals_the_transform(size, mode):
    preprocessing = Preprocessing(24, 24, interpolation=mode)
    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8))
    picture = smooth.resize(size[::-1], Image.Resampling.BICUBIC)
    found = PixelInput(preprocessing, *size)(torch.from_numpy(np.asarray(picture).copy()).unsqueeze(0))[0]
    difference = (found - preprocessing.evaluation()(picture)).abs()
    assert difference.max() < 2.5 / 255 / 0.22, "the transform rounds to bytes twice"
    assert difference.mean() < 0.5 / 255 / 0.22


def test_an_export_that_differs_is_refused_with_its_first_block_and_nothing_is_left(tmp_path, monkeypatch):
    def write(self, program, files, outputs):
        broken = torch.export.export(_Spoiled(program.module()), (images(2),), dynamic_shapes=targets_batch())
        torch.export.save(broken, str(files[0]))

    monkeypatch.setattr(targets.TorchExport, "write", write)
    with pytest.raises(ValueError, match=r"differs from PyTorch on 3 of 3 images.*Block 0 is the first to differ"):
        fv.export(model_of(), tmp_path / "bad", "torch-export", data=images(3))
    assert not (tmp_path / "bad").exists()


class _Spoiled(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, images):
        return tuple(output + 0.01 for output in self.module(images))


def targets_batch():
    return ({0: torch.export.Dim("batch", min=1)},)


def test_flips_are_counted_and_only_a_few_are_accepted():
    expected = [torch.randn(100, 7)]
    few, many = expected[0].clone(), expected[0].clone()
    few[:3] += 1
    many[:9] += 1
    assert compare(expected, [few], 1e-4, may_flip=True).flipped == 3
    assert compare(expected, [few], 1e-4, may_flip=True).holds
    assert not compare(expected, [many], 1e-4, may_flip=True).holds
    assert not compare(expected, [few], 1e-4, may_flip=False).holds
    assert not compare(expected, [expected[0] * torch.nan], 1e-4, may_flip=True).holds


def damaged(folder, kind):
    note = folder / "foveate.json"
    if kind == "bytes":
        (folder / "model.onnx").write_bytes(b"other" + (folder / "model.onnx").read_bytes()[5:])
    elif kind == "missing":
        (folder / "model.onnx").unlink()
    elif kind == "edited":
        note.write_text(note.read_text().replace("class 1", "class 9"))
    elif kind == "garbage":
        note.write_text("{")
    elif kind == "foreign":
        note.unlink()
    elif kind == "another file":
        data = json.loads(note.read_text())
        data["files"] = {"../model.onnx": data["files"]["model.onnx"]}
        note.write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bytes", "is damaged: its checksum is"),
        ("missing", "lacks model.onnx"),
        ("edited", "was edited: its checksum does not fit"),
        ("garbage", "is not valid JSON"),
        ("foreign", "is not an exported model: it has no foveate.json"),
        ("another file", "was edited"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused(copied, kind, words):
    with pytest.raises(ValueError, match=words):
        fv.load_exported(damaged(copied, kind))


def test_a_saved_model_is_not_an_exported_one(tmp_path):
    with pytest.warns(UserWarning, match="cannot be rebuilt"):
        fv.save(model_of(), tmp_path / "saved")
    with pytest.raises(ValueError, match=r"Load it with fv\.load"):
        fv.load_exported(tmp_path / "saved")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "tflite"}, "to must be one of onnx, openvino, torch-export, aoti; got 'tflite'"),
        ({"classes": ["one"]}, "The model has 7 classes, and 1 names were given"),
        ({"data": torch.zeros(2, 3, 8, 8)}, r"data must be images of shape \(batch, 3, 24, 24\)"),
        ({"data": "missing-folder"}, "missing-folder does not exist"),
        ({"quantize": "int4"}, "quantize must be 'int8' or None"),
        ({"quantize": "int8", "data": None}, "int8 is calibrated on images"),
        ({"input_size": (5,)}, r"input_size must be \(height, width\)"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        fv.export(model_of(), tmp_path / "out", **({"to": "onnx", "data": images(3)} | options))
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds other files, such as notes.txt"):
        fv.export(model_of(), tmp_path, "onnx", data=images(3))
    with pytest.raises(ValueError, match="is a file"):
        fv.export(model_of(), tmp_path / "notes.txt", "onnx", data=images(3))


def test_a_missing_runtime_names_the_extra(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else found(name))
    with pytest.raises(ValueError, match=r"openvino needs the package openvino.*foveate\[export\]"):
        fv.export(model_of(), tmp_path / "out", "openvino", data=images(3))


def test_a_model_loaded_for_one_batch_size_computes_the_same_and_takes_no_other(tmp_path):
    folder = fv.export(model_of(), tmp_path / "fast", "openvino", data=images(3))
    whole, one = fv.load_exported(folder), fv.load_exported(folder, batch_size=2)
    torch.testing.assert_close(one(images(2)), whole(images(2)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="loaded for batches of 2, got 3 images"):
        one(images(3))
    with pytest.raises(ValueError, match=r"precision must be 'fp32', or 'bf16'.*got 'int4'"):
        fv.load_exported(folder, precision="int4")


@pytest.mark.export
def test_a_compiled_library_is_one_file_that_runs_for_any_batch(tmp_path):
    fv.export(model_of(), tmp_path / "fast", "aoti", data=images(3))
    assert sorted(p.name for p in (tmp_path / "fast").iterdir() if p.suffix == ".pt2") == ["model.pt2"]
    loaded, model = fv.load_exported(tmp_path / "fast", trusted=True), model_of()
    for batch in (1, 5):
        with torch.no_grad():
            torch.testing.assert_close(loaded(images(batch)), model(images(batch)), rtol=1e-4, atol=1e-5)
