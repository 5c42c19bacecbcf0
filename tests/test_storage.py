"""Reduced models on disk: complete, readable, and never half-written."""

import errno
import json
import multiprocessing
import random

import pytest
import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import foveate as fv
from foveate import files, storage
from zoo import images, main_output, make

SCHEDULES = [
    fv.Keep({1: 20, 2: 15}),
    fv.Keep([36, 30, 20, 20]),
    fv.KeepRate(0.6, blocks=(1, 2)),
    fv.KeepRate(0.6),
    fv.RemovePerBlock(4),
    fv.Budget(0.7),
]


@pytest.fixture
def saved(tmp_path):
    model = fv.reduce_(
        make("torchvision"), fv.EViT(proportional_attention=True), fv.Keep({1: 20}), exact_last_block=True
    )
    return fv.save(model, tmp_path / "saved")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_every_schedule_travels(schedule, tmp_path):
    model = fv.reduce_(make("torchvision"), fv.ToMe(proportional_attention=False), schedule)
    loaded = fv.load(fv.save(model, tmp_path / "m"))
    assert loaded.foveate.schedule == schedule
    assert loaded.foveate.method == fv.ToMe(proportional_attention=False)
    with torch.no_grad():
        assert torch.equal(loaded(images()), model.eval()(images()))


def test_a_registered_timm_model_is_rebuilt_with_its_options(tmp_path):
    model = timm.create_model("test_vit", num_classes=5, img_size=96).eval().bfloat16()
    fv.reduce_(model, fv.ToMe(), fv.RemovePerBlock(3))
    loaded = fv.load(fv.save(model, tmp_path / "m"))
    assert loaded.head.out_features == 5
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert loaded.patch_embed.img_size == (96, 96)


def test_an_unreduced_model_travels_too(tmp_path):
    model = make("torchvision")
    loaded = fv.load(fv.save(model, tmp_path / "m"))
    assert type(loaded) is type(model)
    assert torch.equal(loaded(images()), model(images()))


def test_a_model_whose_parts_were_changed_is_not_promised_to_be_rebuilt(tmp_path):
    model = timm.create_model("test_vit", act_layer="relu")
    with pytest.warns(UserWarning, match="cannot be rebuilt"):
        fv.save(model, tmp_path / "m")
    with pytest.raises(ValueError, match="does not hold the model's architecture"):
        fv.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "options"),
    [("hvt_small_4", {"stages": 1, "depth": 6}), ("hvt_tiny_1", {"stages": 0, "depth": 3}), ("scale_hvt_tiny_4", {})],
)
def test_an_architecture_that_reduces_itself_is_rebuilt_with_any_options(name, options, tmp_path, recwarn):
    size = {"num_heads": 1, "img_size": 64, "patch_size": 4, "num_classes": 3}
    model = timm.create_model(name, **(size | options)).eval()
    loaded = fv.load(fv.save(model, tmp_path / "m"))
    assert not [w for w in recwarn if "cannot be rebuilt" in str(w.message)]
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(loaded(x), model(x))


def test_a_model_pruned_after_it_was_reduced_cannot_be_saved(tmp_path):
    model = fv.reduce_(make("timm-cls"), fv.HVTPool(2))
    model.prune_intermediate_layers([1])
    with pytest.raises(ValueError, match="reduced with 4 blocks and now has 2"):
        fv.save(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_saving_again_replaces_and_leaves_one_set_of_weights(saved):
    fv.save(fv.reduce_(make("torchvision"), fv.ToMe(), fv.RemovePerBlock(2)), saved)
    assert fv.load(saved).foveate.method == fv.ToMe()
    assert len(list(saved.iterdir())) == 2


WRITES = {
    "weights": (files, "save_file"),
    "manifest": (storage, "write_text"),
    "flush": (files, "force_to_disk"),
    "rename": (files.Path, "replace"),
}
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        *((place, error) for place in WRITES for error in (KeyboardInterrupt(), FULL)),
        ("weights", SafetensorError("I/O error: No space left on device")),
    ],
)
def test_a_crash_or_a_full_disk_while_saving_leaves_the_old_model_and_nothing_else(saved, monkeypatch, place, error):
    before = sorted(path.name for path in saved.iterdir())

    def fail(*args):
        raise error

    model = fv.reduce_(make("torchvision"), fv.ToMe(), fv.RemovePerBlock(2))
    with monkeypatch.context() as patch:
        patch.setattr(*WRITES[place], fail)
        with pytest.raises((OSError, KeyboardInterrupt), match=r"No space left|^$"):
            fv.save(model, saved)
    assert sorted(path.name for path in saved.iterdir()) == before
    assert fv.load(saved).foveate.method == fv.EViT(proportional_attention=True)


def test_every_flipped_bit_is_noticed(saved):
    rng = random.Random(0)
    for path in sorted(saved.iterdir()):
        good = path.read_bytes()
        for place in (rng.randrange(8 * len(good)) for _ in range(40)):
            bad = bytearray(good)
            bad[place // 8] ^= 1 << place % 8
            path.write_bytes(bytes(bad))
            with pytest.raises(
                ValueError, match=r"damaged|not valid JSON|has format|not there|must name a weights file"
            ):
                fv.load(saved)
        path.write_bytes(good)
    fv.load(saved)


def test_a_failed_load_leaves_the_given_model_as_it_was(tmp_path):
    saved = fv.save(fv.reduce_(make("torchvision"), fv.DynamicViT(), fv.KeepRate(0.5, blocks=(1,))), tmp_path / "m")
    _edit(saved, model=None)
    other = make("timm-cls")
    for model in (other, fv.reduce_(make("torchvision"), fv.ToMe(), fv.RemovePerBlock(2))):
        before, kind = {k: v.clone() for k, v in model.state_dict().items()}, type(model)
        with pytest.raises(ValueError, match=r"do not fit|already reduced"):
            fv.load(saved, model=model)
        assert type(model) is kind
        assert list(model.state_dict()) == list(before)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert fv.is_reduced(fv.load(saved, model=make("torchvision")))


def test_weights_that_two_layers_share_are_saved_and_loaded(tmp_path):
    model = make("timm-cls")
    model.blocks[1].mlp.fc1.weight = model.blocks[0].mlp.fc1.weight
    with pytest.warns(UserWarning, match="cannot be rebuilt"):  # since another layer has other weights
        fv.save(model, tmp_path / "m")
    loaded = fv.load(tmp_path / "m", model=make("timm-cls"))
    assert torch.equal(main_output(loaded, images()), main_output(model, images()))


def _saves(folder, number):
    model = fv.reduce_(make("torchvision"), fv.ToMe(), fv.RemovePerBlock(number))
    for _ in range(15):
        fv.save(model, folder)


def test_two_writers_and_a_reader_always_have_a_whole_model(tmp_path):
    folder, context = tmp_path / "m", multiprocessing.get_context("fork")
    _saves(folder, 1)
    writers = [context.Process(target=_saves, args=(folder, number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    loads = 0
    while any(writer.is_alive() for writer in writers):
        assert fv.load(folder).foveate.schedule.r in (1, 2)
        loads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert loads
    assert len(list(folder.iterdir())) == 2, "one manifest and one set of weights"
    fv.load(folder)


STEERED = {
    "which this timm does not have": {"library": "timm", "architecture": "hf-hub:x/y", "options": {}},
    "an option 'checkpoint_path'": {
        "library": "timm",
        "architecture": "vit_tiny_patch16_224",
        "options": {"checkpoint_path": "/etc/passwd"},
    },
    "global_pool='../x'": {"library": "timm", "architecture": "test_vit", "options": {"global_pool": "../x"}},
    "depth is 1000000000": {"library": "timm", "architecture": "test_vit", "options": {"depth": 10**9}},
    "no table of options": {"library": "timm", "architecture": "test_vit", "options": [1]},
    "an attention of sdpa, eager": {
        "library": "transformers",
        "class": "ViTModel",
        "config": {},
        "attention": "kernels-community/x",
    },
    "a key 'auto_map'": {
        "library": "transformers",
        "class": "ViTModel",
        "config": {"auto_map": {"AutoModel": "x--y.Z"}},
        "attention": "sdpa",
    },
    "a 'BertModel', which foveate does not know": {"library": "transformers", "class": "BertModel", "config": {}},
    "an option 'norm_layer'": {"library": "torchvision", "options": {"norm_layer": "x"}},
}


@pytest.mark.parametrize("words", STEERED)
def test_a_manifest_cannot_steer_a_library(saved, words):
    _edit(saved, model=STEERED[words])
    with pytest.raises((ValueError, fv.UnsupportedModel), match=words):
        fv.load(saved)


def test_a_save_that_was_killed_before_its_manifest_does_not_hinder_the_next(tmp_path):
    (tmp_path / "model-0123abcd.safetensors").write_bytes(b"half")
    (tmp_path / ".foveate.json-0123abcd.tmp").write_text("{")
    fv.save(make("torchvision"), tmp_path)
    assert not (tmp_path / "model-0123abcd.safetensors").exists()
    fv.load(tmp_path)


def test_weights_of_others_are_other_things(tmp_path):
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"theirs")
    with pytest.raises(ValueError, match="holds other files"):
        fv.save(make("torchvision"), tmp_path)


def test_a_folder_with_other_things_is_not_written_to(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds other files"):
        fv.save(make("torchvision"), tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda folder: (folder / "foveate.json").unlink(), "was not written by foveate.save"),
        (lambda folder: (folder / "foveate.json").write_text("{"), "not valid JSON"),
        (lambda folder: _edit(folder, format=99), "has format 99"),
        (lambda folder: _edit(folder, weights="../other.safetensors"), "must name a weights file in its own directory"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "are not there"),
        (lambda folder: next(folder.glob("*.safetensors")).write_bytes(b"cut"), "is damaged: its checksum"),
        (lambda folder: (folder / "foveate.json").write_text("[" * 100_000), "nested too deeply|not valid JSON"),
        (lambda folder: _edit(folder, model={"library": "keras"}), "no family for the library 'keras'"),
    ],
)
def test_damaged_saves_are_refused_with_words(saved, damage, match):
    damage(saved)
    with pytest.raises(ValueError, match=match):
        fv.load(saved)


def test_weights_that_do_not_fit_are_named(saved):
    _edit(saved, model=None)
    with pytest.raises(ValueError, match="do not fit the model"):
        fv.load(saved, model=make("timm-cls"))


def test_weights_of_another_shape_are_named(tmp_path):
    saved = fv.save(fv.reduce_(make("torchvision"), fv.DynamicViT(), fv.KeepRate(0.5, blocks=(1,))), tmp_path / "m")
    file = next(saved.glob("*.safetensors"))
    save_file(load_file(file) | {"foveate.learned.1.norm.weight": torch.ones(3)}, file)
    _edit(saved, weights_checksum=files.checksum(file))
    with pytest.raises(ValueError, match=r"do not fit the model: foveate\.learned\.1\.norm\.weight has shape \(3,\)"):
        fv.load(saved)


SCHEDULES = [
    fv.Keep([196, 100, 50]),
    fv.Keep({3: 100}),
    fv.KeepRate(0.7, blocks=(3, 6)),
    fv.RemovePerBlock(8),
    fv.Budget(0.5),
    fv.Budget(0.5, blocks=(2, 5)),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_schedule_survives_its_file(schedule, tmp_path):
    path = fv.save_schedule(schedule, tmp_path / "new" / "counts.json")
    assert fv.load_schedule(path) == schedule
    assert [f.name for f in path.parent.iterdir()] == ["counts.json"]


def test_a_crash_while_saving_a_schedule_leaves_the_old_one(tmp_path, monkeypatch):
    path = fv.save_schedule(fv.Budget(0.5), tmp_path / "counts.json")

    def crash(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(storage.os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        fv.save_schedule(fv.Budget(0.8), path)
    assert fv.load_schedule(path) == fv.Budget(0.5)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "There is no file"),
        ("{", "not valid JSON"),
        ("[1, 2]", "has format None"),
        ('{"format": 7}', "has format 7"),
        ('{"format": 1}', "does not hold a schedule"),
        ('{"format": 1, "schedule": {"kind": "keep"}}', "does not hold a schedule"),
        ('{"format": 1, "schedule": {"kind": "budget", "rate": 2}}', "does not hold a schedule"),
        ('{"format": 1, "schedule": {"kind": "sometimes"}}', "There is no schedule 'sometimes'"),
        ('{"format": 1, "schedule": [1, 2]}', "does not hold a schedule"),
        ('{"format": 1, "schedule": {"kind": "keep","pairs": [[3, 5.9]], "listed": false}}', "whole numbers"),
    ],
)
def test_a_file_without_a_schedule_is_refused_with_words(text, match, tmp_path):
    path = tmp_path / "counts.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=match):
        fv.load_schedule(path)


def _edit(folder, **changes):
    """Change the manifest as somebody would who wants it to be believed."""
    path = folder / "foveate.json"
    manifest = {k: v for k, v in json.loads(path.read_text()).items() if k != "checksum"}
    path.write_text(json.dumps(files.sealed(manifest | changes)))
