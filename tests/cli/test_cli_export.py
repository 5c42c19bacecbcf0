"""``foveate export``: one verified folder, and errors before a model is loaded."""

import json

import pytest

import foveate as fv
from foveate_cli.main import main

COMMAND = "export test_vit --method EViT --keep-rate 0.7 --limit 2 --to torch-export --out"


def test_it_writes_a_verified_folder_and_says_how_to_load_it(capsys, tmp_path):
    folder = tmp_path / "fast"
    assert main([*COMMAND.split(), str(folder)]) == 0
    out = capsys.readouterr().out
    assert f'Load it with fv.load_exported("{folder}").' in out
    assert "On 2 images of scenes: it differs from PyTorch by" in out
    assert fv.load_exported(folder, trusted=True).reduction.method == fv.EViT()
    assert json.loads((folder / "foveate.json").read_text())["target"] == "torch-export"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--to onnx --out x --quantize int8", "int8 is calibrated on images"),
        ("--to onnx --out x --methods EViT ToMe --keep-rate 0.7", "export writes one model"),
        ("--to tflite --out x", "invalid choice: 'tflite'"),
        ("--to onnx --out pyproject.toml", "pyproject.toml is a file"),
        ("--to onnx --out x --with-preprocessing 10y20", "write 224, 224x320"),
    ],
)
def test_wrong_requests_are_answered_before_a_model_is_loaded(capsys, options, words):
    assert main(["export", "no_such_model", *options.split()]) == 2
    assert words in capsys.readouterr().err
