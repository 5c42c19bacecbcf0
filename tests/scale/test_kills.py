"""Killed at any moment: the command, one of its processes, an actor of Ray. Every image is then still one row."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pyarrow.parquet as pq
import pytest

import foveate as fv
from foveate.scale import write_predictions
from foveate.scale.local import DEATHS, WorkerDied, run_local

PATIENCE = 120


def rows(folder):
    return pq.read_table(folder).to_pylist()


def write(toy, photos, out, **options):
    return write_predictions(fv.Predictor(toy, batch_size=3), photos, out, part_images=1, **options)


@pytest.fixture(scope="module")
def whole(toy, photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    write(toy, photos, out, processes=1)
    return rows(out)


def killing(mark, killed):
    """Progress that kills one process below this one, as soon as something is written."""

    def progress(phase, done, total, note=""):
        if done and not killed:
            children = psutil.Process().children(recursive=True)
            found = [child for child in children if mark in " ".join(child.cmdline())]
            if found:
                found[0].kill()
                killed.append(found[0].pid)

    return progress


def test_a_run_goes_on_without_a_process_that_was_killed(toy, photos, whole, tmp_path):
    killed = []
    summary = write(toy, photos, tmp_path / "out", processes=2, progress=killing("spawn_main", killed))
    assert killed
    assert (summary.images, summary.broken) == (25, 1)
    assert rows(tmp_path / "out") == whole


def test_ray_gives_the_parts_of_a_killed_actor_to_another(toy, photos, whole, tmp_path):
    killed = []
    progress = killing("ray::MapWorker", killed)
    summary = write(toy, photos, tmp_path / "out", engine="ray", processes=2, progress=progress)
    assert killed
    assert (summary.images, summary.broken) == (25, 1)
    assert rows(tmp_path / "out") == whole


def test_a_killed_command_is_resumed(toy, photos, whole, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "foveate", "predict", str(toy), "--data", str(photos), "--out", str(out)]
    command += ["--processes", "1", "--part-images", "1", "--batch-size", "3", "--resume"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.glob("part-*")) and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 0 < len(list(out.glob("part-*"))) < 25
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "of them from before" in done.stdout
    assert rows(out) == whole
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_processes_that_always_die_are_an_error(monkeypatch):
    from concurrent.futures.process import BrokenProcessPool

    from foveate.scale import local

    starts = []

    def dying(*_):
        starts.append(1)
        raise BrokenProcessPool
        yield

    monkeypatch.setattr(local, "_run_pool", dying)
    with pytest.raises(WorkerDied, match=r"died 4 times in a row, perhaps because memory ran out.*--resume"):
        list(run_local(None, [0, 1], 2, print))
    assert len(starts) == DEATHS + 1
