"""A run tells what it does before it begins, writes down what it holds out, and its folder finds its best model."""

import logging
import shutil

import pytest

import foveate as fv
from foveate.data import DataError
from foveate.models.by_name import load_model
from foveate.tasks.options import read_task
from foveate.training import announcing, run_log
from foveate.training.announcing import HELD_OUT_FILE, in_words
from foveate.training.build import open_both
from small_runs import make_images, small_config

SHORT = ("schedule.epochs=1", "augmentation.auto_augment=", "optimizer.ema=0")


@pytest.fixture(scope="module")
def undivided(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("undivided")) / "train"


@pytest.fixture(scope="module")
def run_folder(undivided, tmp_path_factory):
    """A finished run on a folder without splits, and what it logged."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    photos = folder.parent / "photos"
    shutil.copytree(undivided, photos)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("foveate")
    logger.addHandler(handler)
    before, logger.level = logger.level, logging.INFO
    limits = run_log.ESTIMATE_SECONDS, run_log.ESTIMATE_STEPS
    run_log.ESTIMATE_SECONDS, run_log.ESTIMATE_STEPS = 0.0, 1
    try:
        fv.train(small_config(photos, "data.val_share=0.25", "data.batch_size=6", *SHORT), out=folder)
    finally:
        run_log.ESTIMATE_SECONDS, run_log.ESTIMATE_STEPS = limits
        logger.removeHandler(handler)
        logger.level = before
    return folder, photos, lines


def test_the_first_lines_say_what_is_trained_on_what_and_for_how_long(run_folder):
    _, photos, lines = run_folder
    text = "\n".join(lines)
    assert "Model: vit_tiny_patch16_224, 44994 parameters; not reduced." in text
    held_out = "(held out: data.val_share=0.25)"
    assert f"Data: {photos}, 18 images to train on, 6 images to evaluate on {held_out}; 2 classes." in text
    assert "New: all weights. Nothing is pretrained" in text
    assert "Steps: 3, of 6 images each; 3 make an epoch." in text
    assert [line for line in lines if line.startswith("Estimated time: ")], "timed after the first steps"


def test_held_out_images_are_written_down(run_folder):
    folder, photos, _ = run_folder
    names = (folder / HELD_OUT_FILE).read_text().splitlines()
    assert len(names) == len(set(names)) == 6
    assert sum("bright" in name for name in names) == 3
    assert all(name.startswith(str(photos)) for name in names)


def test_the_folder_of_a_run_finds_its_best_model(run_folder, tmp_path):
    folder, _, _ = run_folder
    best = fv.load(folder / "best").state_dict()
    for found in (fv.load(folder), load_model(str(folder))):
        assert all(tensor.equal(best[name]) for name, tensor in found.state_dict().items())
    assert read_task(folder) == (None, {})
    shutil.copytree(folder / "model", tmp_path / "b" / "model")
    assert fv.load(tmp_path / "b") is not None  # a run without evaluation has no best
    with pytest.raises(ValueError, match=r"has no foveate\.json"):
        fv.load(tmp_path)


def test_data_with_splits_keep_theirs(tmp_path):
    folder = make_images(tmp_path)
    with pytest.raises(DataError, match=r"has the split 'val' to evaluate on. Leave out data\.val_share"):
        open_both(small_config(folder, "data.val_share=0.2").data)
    shutil.rmtree(folder / "val")
    with pytest.raises(DataError, match=r"has no split 'val'; it has train\. To hold a fifth .*data\.val_share=0\.2"):
        open_both(small_config(folder).data)
    train, val = open_both(small_config(folder, "data.val_share=0.25").data, seed=1)
    assert (len(train), len(val)) == (18, 6)


@pytest.mark.parametrize("share", ["1", "-0.1", "20"])
def test_a_share_is_below_one(share, undivided):
    with pytest.raises(ValueError, match=r"data\.val_share must be at least 0 and below 1"):
        small_config(undivided, f"data.val_share={share}").check()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(40, "40 s"), (89, "89 s"), (720, "12 min"), (4800, "80 min"), (9000, "2 h 30 min"), (200_000, "2 days 7 h")],
)
def test_durations_in_words(seconds, words):
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("name", "weights", "new", "words"),
    [
        ("vit_tiny_patch16_224", "w.safetensors", True, "New: the classifier, for the classes"),
        ("vit_tiny_patch16_224", "w.safetensors", False, "New: nothing."),
        ("vit_tiny_patch16_224", "", False, "New: all weights."),
    ],
)
def test_what_is_new_is_told_apart(name, weights, new, words):
    from types import SimpleNamespace as Some

    section = Some(name=name, pretrained=False, weights=weights)
    run = Some(config=Some(model=section), new_classifier=new)
    assert announcing._start_line(run).startswith(words)
