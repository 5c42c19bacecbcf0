"""``run.shard=fsdp``: two processes that each hold half of every parameter train as one process does."""

import json
import os
import subprocess
import sys

import pytest
import torch
from accelerate import Accelerator

import foveate as fv
from foveate.training.checkpoint import CURRENT, read_checkpoint
from foveate.training.config import set_values
from foveate.training.layout import find_layout
from small_runs import small_config

PATIENCE = 300
PLAIN = ("optimizer.ema=0", "augmentation.mixup=0", "augmentation.cutmix=0", "augmentation.auto_augment=")
PLAIN += ("augmentation.erase=0", "run.steps=4", "reduction.method=tome", "reduction.remove=3")
POWER = ("run.shard=fsdp", "objective.kind=power-search", "objective.smoothing=0")
SCRIPT = """
import sys, json, torch
from torch.distributed.tensor import DTensor
from foveate.training import loop
from foveate.training.entry import train
from foveate.training.config import read_config
real = loop.Run.train

def checked(run, *given):
    if run.config.run.shard:
        parameters = list(run.objective.parameters())
        assert parameters and all(isinstance(p, DTensor) for p in parameters)
        assert sum(p.to_local().numel() for p in parameters) < 0.6 * sum(p.numel() for p in parameters)
        assert all(isinstance(p, DTensor) for group in run.optimizer.param_groups for p in group["params"])
    return real(run, *given)

loop.Run.train = checked
torch.set_num_threads(1)
values, out, resume = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "resume"
train(read_config(values), out=out, resume=resume)
"""


def run(config, out, processes, resume=False):
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
    script = out.parent / "script.py"
    script.write_text(SCRIPT)
    arguments = [str(script), json.dumps(config.as_dict()), str(out), "resume" if resume else "begin"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    start = [*launch, *arguments] if processes > 1 else [sys.executable, *arguments]
    done = subprocess.run(start, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]


def curves(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_a_sharded_run_has_the_curves_of_one_process_and_resumes(images_folder, tmp_path):
    config = small_config(images_folder, *PLAIN, "model.options.drop_path_rate=0", "data.eval_batch_size=3")
    one, two = tmp_path / "one", tmp_path / "two"
    run(config, one, processes=1)
    sharded = {"run.shard": "fsdp"}
    run(set_values(config, {**sharded, "run.steps": 3}), two, processes=2)
    assert curves(two)[-1]["step"] == 3
    run(set_values(config, sharded), two, processes=2, resume=True)
    for ours, theirs in zip(curves(one), curves(two), strict=True):
        assert theirs["val"]["images"] == 10
        assert ours["val"] == pytest.approx(theirs["val"], abs=1e-5)
        assert ours["train"] == pytest.approx(theirs["train"], abs=1e-5)
    ours, theirs = (read_checkpoint(out / CURRENT).tensors["objective"] for out in (one, two))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)
    model = fv.load(two / "model")
    assert fv.is_reduced(model)
    assert torch.allclose(model.state_dict()["head.weight"], theirs["model.head.weight"])


def test_one_process_has_nothing_to_shard():
    config = small_config("nowhere", "run.shard=fsdp", "optimizer.ema=0")
    with pytest.raises(ValueError, match=r"divides a model among processes, and this run has one. Start it with torch"):
        find_layout(config, Accelerator(cpu=True))


def test_what_cannot_be_sharded_is_refused(monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    with pytest.raises(ValueError, match=r"keeps no moving average of the weights. Set optimizer.ema=0"):
        find_layout(small_config("nowhere", "run.shard=fsdp"), Accelerator(cpu=True))
    with pytest.raises(ValueError, match="does not search PoWER's counts"):
        find_layout(small_config("nowhere", *POWER, "optimizer.ema=0"), Accelerator(cpu=True))
