"""A run that is killed at any moment, or split over processes, ends as the one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import foveate as fv
from foveate.training.checkpoint import CURRENT
from small_runs import SMALL, small_config

PATIENCE = 300  # seconds: a run that hangs is to fail, not to wait for ever


def command(data: Path, out: Path, *changes: str) -> list[str]:
    """As a user would write it, with a checkpoint after every step."""
    recipe = out.parent / "recipe.toml"
    if not recipe.exists():
        values = small_config(data, "schedule.epochs=6", "run.checkpoint_steps=1").as_dict()
        recipe.write_text(as_toml(values))
    start = [sys.executable, "-m", "foveate", "train", str(recipe), "--out", str(out), "--resume"]
    return [*start, *(["--set", *changes] if changes else [])]


def as_toml(values: dict) -> str:
    lines = []
    for section, entries in values.items():
        if isinstance(entries, dict):
            lines.append(f"[{section}]")
            lines += [f"{name} = {toml_value(value)}" for name, value in entries.items()]
    return "\n".join(lines)


def toml_value(value) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{name}" = {toml_value(inner)}' for name, inner in value.items()) + " }"
    return json.dumps(value)


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = (fv.load(path / "model").state_dict() for path in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_killed_at_random_moments_ends_with_the_same_weights(images_folder, tmp_path):
    environment = one_thread()
    subprocess.run(
        command(images_folder, tmp_path / "whole"), check=True, env=environment, capture_output=True, timeout=PATIENCE
    )
    killed, moments = tmp_path / "killed", random.Random(7)
    for _ in range(3):
        process = subprocess.Popen(command(images_folder, killed), env=environment, stderr=subprocess.DEVNULL)
        wait_for_checkpoint(killed, process)
        time.sleep(moments.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(
        command(images_folder, killed), env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert "Resuming after step" in done.stderr
    assert same_weights(tmp_path / "whole", killed)
    assert len((killed / "log.jsonl").read_text().splitlines()) == 6


def wait_for_checkpoint(directory: Path, process: subprocess.Popen) -> None:
    """Until the process has written one itself, so that every life of the run gets somewhere."""
    path, began = directory / CURRENT, time.time()
    before = path.stat().st_mtime_ns if path.exists() else None
    while process.poll() is None and time.time() - began < PATIENCE:
        if path.exists() and path.stat().st_mtime_ns != before:
            return
        time.sleep(0.02)


def test_sigterm_writes_a_checkpoint_and_says_how_to_go_on(images_folder, tmp_path):
    """Also where the signal reaches the processes that read images, as schedulers send it."""
    out = tmp_path / "run"
    start = command(images_folder, out, "schedule.epochs=500", "run.checkpoint_steps=0", "data.workers=1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(start, env=one_thread(), start_new_session=True, **pipes)
    while not (out / "log.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Repeat the command with --resume to continue" in said
    assert (out / CURRENT).exists()


def test_a_run_that_fails_says_so_and_ends_although_workers_are_waiting(images_folder, tmp_path):
    wild = ["optimizer.lr=1e20", "optimizer.clip_norm=0", "optimizer.ema=0", "data.workers=2", "schedule.epochs=50"]
    start = command(images_folder, tmp_path / "run", *wild)
    done = subprocess.run(start, env=one_thread(), capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 2, done.stderr
    assert "foveate: " in done.stderr.splitlines()[-1]
    assert "lower optimizer.lr" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("objective", ["classify", "distill"])
def test_two_processes_see_the_losses_of_one(images_folder, tmp_path, objective):
    """The same global batch, without chance: the curves agree, and every validation image is counted once."""
    plain = ["augmentation.kind=evaluation", "augmentation.mixup=0", "augmentation.cutmix=0", "optimizer.ema=0"]
    plain += ["model.options.drop_path_rate=0", "schedule.epochs=2", "run.checkpoint_steps=0"]
    if objective == "distill":
        teacher = tmp_path / "teacher"
        fv.save(small_teacher(), teacher)
        plain += [
            "objective.kind=distill",
            "objective.smoothing=0",
            f"objective.teacher={teacher}",
            "model.options.num_classes=0",
        ]
        plain += ["reduction.method=evit", "reduction.keep_rate=0.5", "reduction.blocks=1"]
    environment = one_thread()
    subprocess.run(
        command(images_folder, tmp_path / "one", *plain),
        check=True,
        env=environment,
        capture_output=True,
        timeout=PATIENCE,
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m"]
    pair = command(images_folder, tmp_path / "two", *plain)[2:]
    if torch.accelerator.is_available():  # without one, nothing needs to be said
        environment |= {"ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*launch, *pair], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "processes: 2." in done.stderr  # two runs that do not know of each other have the curves of one, too
    curves = [[json.loads(x) for x in (tmp_path / n / "log.jsonl").read_text().splitlines()] for n in ("one", "two")]
    for ours, theirs in zip(*curves, strict=True):
        assert ours["train"] == pytest.approx(theirs["train"], abs=1e-5)
        assert ours["val"] == pytest.approx(theirs["val"], abs=1e-5)
        assert theirs["val"]["images"] == 10


def small_teacher():
    import timm

    torch.manual_seed(5)
    return timm.create_model("vit_tiny_patch16_224", **(SMALL | {"embed_dim": 48}), num_classes=0)
