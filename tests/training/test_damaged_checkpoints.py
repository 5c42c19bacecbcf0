"""Checkpoints that were damaged, and runs that share a directory."""

import os
import random

import pytest
import torch

from foveate.files import LOCK, FolderInUse, exclusive_lock
from foveate.training import train
from foveate.training.checkpoint import (
    CURRENT,
    PREVIOUS,
    Checkpoint,
    DamagedCheckpoint,
    read_checkpoint,
    read_newest_checkpoint,
    write_checkpoint,
)
from small_runs import small_config


def checkpoint(number):
    return Checkpoint(
        {"model": {"weight": torch.full((5, 7), float(number)), "count": torch.tensor(3)}}, {"step": number}
    )


@pytest.fixture
def two(tmp_path):
    for number in (1, 2):
        write_checkpoint(tmp_path, checkpoint(number))
    return tmp_path


def test_every_flipped_bit_is_noticed_and_the_one_before_is_used(two):
    good, rng = (two / CURRENT).read_bytes(), random.Random(1)
    for place in (rng.randrange(8 * len(good)) for _ in range(60)):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        (two / CURRENT).write_bytes(bytes(bad))
        with pytest.raises(ValueError, match=r"damaged|not a checkpoint|earlier foveate"):
            read_checkpoint(two / CURRENT)
    (two / CURRENT).write_bytes(good[:-4] + bytes(4))
    with pytest.warns(UserWarning, match=r"is damaged.*continues from checkpoint-previous"):
        path, found = read_newest_checkpoint(two)
    assert (path.name, found.values) == (PREVIOUS, {"step": 1})


def test_without_an_older_one_the_error_remains(two):
    (two / PREVIOUS).unlink()
    (two / CURRENT).write_bytes(b"no")
    with pytest.raises(DamagedCheckpoint, match="truncated or not a checkpoint"):
        read_newest_checkpoint(two)


def test_what_killed_writers_left_is_gone_after_the_next_success(two):
    (two / f".{CURRENT}.new-0123abcd.tmp").write_bytes(b"half")
    write_checkpoint(two, checkpoint(3))
    assert sorted(path.name for path in two.iterdir()) == [PREVIOUS, CURRENT]
    assert read_newest_checkpoint(two)[1].values == {"step": 3}


def test_a_second_run_in_one_directory_is_refused_with_the_holder(images_folder, tmp_path):
    config = small_config(images_folder, "run.steps=1")
    with (
        exclusive_lock(tmp_path / "run", "foveate train"),
        pytest.raises(FolderInUse, match=f"process {os.getpid()} on"),
    ):
        train(config, out=tmp_path / "run")
    assert not (tmp_path / "run" / LOCK).exists()
    assert train(config, out=tmp_path / "run").finished
    assert not (tmp_path / "run" / LOCK).exists()


def test_the_lock_of_a_process_that_ended_is_not_in_the_way(tmp_path):
    (tmp_path / LOCK).write_text("foveate train, process 1 on another")
    with exclusive_lock(tmp_path, "foveate train"):
        assert (tmp_path / LOCK).read_text().startswith(f"foveate train, process {os.getpid()}")
