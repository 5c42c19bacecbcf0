"""Reduced models under FSDP2, with two processes on CPUs: losses, checkpoints, compiled blocks, inference."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sharded import CASES, STEPS, make
from torch.distributed.fsdp import FSDPModule

import foveate as fv


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes report."""
    script = Path(__file__).with_name("sharded.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, str(tmp_path_factory.mktemp("checkpoints"))],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_those_of_ddp_and_of_one_process(found, name):
    runs = found[name]
    assert len(runs["fsdp"]) == STEPS
    assert runs["fsdp"][0] != pytest.approx(runs["fsdp"][-1], abs=1e-4)  # it learns
    assert runs["fsdp"] == pytest.approx(runs["ddp"], abs=1e-5)
    assert runs["fsdp"] == pytest.approx(runs.get("alone", runs["ddp"]), abs=1e-5)
    assert runs["inference"] < 1e-6


@pytest.mark.parametrize("name", ["select", "merge", "learned"])
def test_sharded_checkpoints_resume_and_blocks_compile(found, name):
    assert found[name]["resumed"] == pytest.approx(found[name]["fsdp"], abs=1e-5)
    assert found[name]["compiled"] == pytest.approx(found[name]["fsdp"], abs=1e-5)


def test_a_sharded_model_is_neither_reduced_nor_restored():
    model = make(CASES["select"])
    model.blocks[0].__class__ = type("FSDPBlock", (FSDPModule, type(model.blocks[0])), {})
    with pytest.raises(ValueError, match=r"is sharded by FSDP. Restore it before fully_shard"):
        fv.restore_(model)
    plain = make(fv.Reduction())
    plain.blocks[0].__class__ = type("FSDPBlock", (FSDPModule, type(plain.blocks[0])), {})
    with pytest.raises(ValueError, match=r"is sharded by FSDP. Reduce it before fully_shard"):
        fv.reduce_(plain, fv.ToMe(), 0.5)


@pytest.mark.parametrize("name", CASES)
def test_hooks_on_every_block_fire_once_with_tokens(name):
    model, seen = make(CASES[name]), []
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda block, args, number=number: seen.append(("in", number, args[0].shape)))
        block.register_forward_hook(lambda block, args, out, number=number: seen.append(("out", number, out.shape)))
    images = torch.randn(2, 3, 32, 32)
    model(images)
    assert [(way, number) for way, number, _ in seen] == [(way, n) for n in range(3) for way in ("in", "out")]
    assert all(len(shape) == 3 and shape[0] == 2 for *_, shape in seen)
    kept = [tokens for way, _, tokens in seen if way == "out"]
    if name in ("select", "merge"):
        assert [tokens[1] for tokens in kept] == list(fv.cost(model, (3, 32, 32)).tokens)


def test_a_hook_may_change_the_tokens_of_a_block_that_reduces():
    model, images = make(CASES["merge"]).eval(), torch.randn(2, 3, 32, 32)
    before = model(images)
    handle = model.blocks[1].register_forward_hook(lambda block, args, out: out * 2)
    assert not torch.allclose(model(images), before)
    handle.remove()
    assert torch.equal(model(images), before)
