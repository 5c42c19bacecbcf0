"""``foveate search``: the question is checked before a model is loaded, the answer is printed and written."""

import json

import pytest
import timm
import torch

import foveate as fv
from foveate_cli.main import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    size = {"img_size": 24, "patch_size": 4, "embed_dim": 32, "num_heads": 2, "depth": 4, "num_classes": 7}
    torch.manual_seed(2)
    model = timm.create_model("vit_tiny_patch16_224", **size)
    return str(fv.save(model, tmp_path_factory.mktemp("models") / "toy"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    import numpy as np
    from PIL import Image

    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(1)
    for number in range(70):
        Image.fromarray(draw.integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    return str(folder)


def test_it_finds_prints_and_writes(saved, photos, tmp_path, capsys):
    out = tmp_path / "found.json"
    words = [
        "search",
        saved,
        "--data",
        photos,
        "--for",
        "macs<=0.7",
        "--method",
        "topk",
        "--trials",
        "2",
        "--seconds",
        "0.05",
    ]
    assert main([*words, "--out", str(out), "--workers", "0"]) == 0
    shown = capsys.readouterr().out
    assert "fv.reduce_(model, fv.TopK(), fv.Keep(" in shown
    assert "other images" in shown
    assert max(map(len, shown.splitlines())) < 160  # a table that fits a screen: methods without their defaults
    found = json.loads(out.read_text())
    assert found["met"]
    assert fv.Reduction.from_dict(found["reduction"]).method == fv.TopK()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--for", "speed>2"], "Cannot read the constraint"),
        (["--for", "macs<=0.5", "--for", "macs<=0.4"], "bounded twice"),
        (["--for", "macs<=0.5", "--for", "speedup>=2"], "takes one of them"),
        (["--for", "macs<=0.5", "--data", "nowhere"], "nowhere"),
        (["--for", "macs<=0.5", "--method", "nonsense"], "nonsense"),
        (["--for", "agreement>=99"], "For 99 % write 0.99"),
        (["--for", "macs<=0.5", "--optimize", "memory"], "quality is optimized"),
        (["--for", "memory<=5"], "Write 5MiB or 5GiB"),
    ],
)
def test_wrong_questions_are_one_line_and_load_nothing(photos, words, said, capsys, tmp_path):
    start = ["search", "there-is-no-such-model", "--out", str(tmp_path / "f.json")]
    assert main([*start, *([] if "--data" in words else ["--data", photos]), *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
