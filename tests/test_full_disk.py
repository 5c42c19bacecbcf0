"""A disk that is full at any write of a command: one line, exit 2, the old state, and nothing left after a success."""

import errno
import itertools
import os
import sys

import pytest
import timm
import torch
from PIL import Image

import foveate as fv
from comparing import QUICK, pretended
from foveate import files
from foveate.report.compare import compare, run
from foveate_cli.main import main
from small_runs import SMALL, make_images
from zoo import make


@pytest.fixture
def full_at(monkeypatch):
    """``full_at(n)``: the n-th flush of a file from now on fails; returns the list of flushes."""
    real, flushes, failing = os.fsync, [], []

    def fsync(descriptor):
        flushes.append(descriptor)
        if len(flushes) in failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    def arrange(number):
        flushes.clear()
        failing[:] = [number]
        return flushes

    monkeypatch.setattr(files.os, "fsync", fsync)
    return arrange


def content(folder):
    """Files by their bytes, but for event files, whose names hold the time, and clocks in the log."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "tensorboard")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def names(folder):
    return sorted(name.partition("model-")[0] for name in content(folder))


def refused(capsys):
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert error[0].startswith("foveate: ")
    assert "No space left on device" in error[0]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=2)
    return fv.save(model, tmp_path_factory.mktemp("models") / "small")


def test_every_write_of_a_training(pictures, saved, tmp_path, capsys, full_at):
    values = ["schedule.epochs=1", "schedule.warmup_epochs=0", "data.workers=0", "run.steps=1"]
    command = ["train", "finetune", "--data", str(pictures), "--model", str(saved), "--batch-size", "8", "--json"]

    def train(out):
        return main([*command, "--out", str(out), "--resume", "--set", *values])

    flushes = full_at(0)
    assert train(tmp_path / "whole") == 0
    writes, whole = len(flushes), names(tmp_path / "whole")
    assert writes > 8  # configuration, checkpoints, logs, two models with their classes
    best = fv.load(tmp_path / "whole" / "best").state_dict()
    capsys.readouterr()
    for number in range(1, writes + 1):
        out = tmp_path / str(number)
        full_at(number)
        assert train(out) == 2
        refused(capsys)
        full_at(0)
        assert train(out) == 0
        capsys.readouterr()
        assert names(out) == whole
        again = fv.load(out / "best").state_dict()
        assert all(torch.equal(again[name], value) for name, value in best.items())


def test_every_write_of_a_comparison(pictures, tmp_path, monkeypatch, full_at):
    monkeypatch.setattr(run, "measure_candidate", pretended)
    monkeypatch.setattr(run, "SECONDS_BETWEEN_STORES", 0)
    model, folder = make("timm-cls"), tmp_path / "report"
    given = QUICK | {"store": folder, "limit": 4}
    compare(model, pictures / "val" / "dark", **given).save(folder)
    before = content(folder)
    assert set(before) == {"index.html", "results.csv", "results.json"}
    for number in itertools.count(1):
        flushes = full_at(number)
        try:
            compare(model, pictures / "val" / "dark", **given).save(folder)
            break
        except files.CannotWrite:
            after = content(folder)
        assert {name: after[name] for name in before} == before
        assert set(after) - set(before) <= {"partial.json"}
    assert number > 5
    assert len(flushes) < number
    assert set(content(folder)) == set(before)


def test_a_picture(pictures, saved, tmp_path, capsys, full_at):
    target = tmp_path / "drawn.png"
    Image.new("RGB", (8, 8), "red").save(target)
    before = content(tmp_path)
    command = ["show", "features", str(saved), str(pictures / "val" / "dark" / "00.png"), "--out", str(target)]
    full_at(1)
    assert main(command) == 2
    refused(capsys)
    assert content(tmp_path) == before
    full_at(0)
    assert main(command) == 0
    assert list(content(tmp_path)) == ["drawn.png"]
    assert content(tmp_path) != before


def test_results_on_standard_output(pictures, saved, capsys, monkeypatch):
    evaluation = ["eval", str(saved), "--data", str(pictures), "--json"]
    speed = ["speed", str(saved), "--method", "ToMe", "--remove", "2", "--batch-size", "1", "--seconds", "0.01"]
    for command in (evaluation, [*speed, "--json"]):
        with open("/dev/full", "w") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            assert main(command) == 2
            with pytest.raises(OSError, match="No space"):
                full.close()
        refused(capsys)
