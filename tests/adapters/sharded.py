"""Two processes that train reduced models unsharded, by DDP and by FSDP2. Run by ``test_fsdp.py``; prints JSON.

Each process sees half of the images, and one process alone sees all of them, so all three must have equal losses.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import foveate as fv

STEPS = 4
CASES = {
    "select": fv.Reduction(fv.TopK(), fv.Keep({0: 10, 1: 6})),
    "merge": fv.Reduction(fv.ToMe(), fv.RemovePerBlock(4)),
    "cluster keys": fv.Reduction(fv.ClusterAttention(ratio=4)),
    "learned": fv.Reduction(fv.StridedConv(blocks=(0,))),
    "masked": fv.Reduction(fv.DynamicViT(), fv.KeepRate(0.5, blocks=(1,))),
    "unit": fv.Reduction(unit_qk="learned"),
    "exact last block": fv.Reduction(fv.EViT(), fv.Keep({0: 8}), exact_last_block=True),
}


def make(reduction: fv.Reduction, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 4}
    return reduction.apply_(VisionTransformer(**size)).train()


def shard_(model: nn.Module) -> nn.Module:
    for block in fv.inspect(model).blocks:
        fully_shard(block)
    return fully_shard(model)


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 3, 32, 32, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, alone: bool) -> list[float]:
    found = []
    for step in steps:
        images, labels = data(step)
        if not alone:
            images, labels = (half[dist.get_rank() :: 2] for half in (images, labels))
        torch.manual_seed(100 * step + dist.get_rank())  # a method that draws, draws the same in DDP and FSDP
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if not alone:
            dist.all_reduce(loss, dist.ReduceOp.SUM)
            loss /= 2
        found.append(float(loss))
    return found


def trained(kind: str, reduction: fv.Reduction) -> list[float]:
    model = make(reduction)
    if kind == "ddp":
        model = DistributedDataParallel(model, find_unused_parameters=True)
    if kind in ("fsdp", "compiled"):
        if kind == "compiled":
            for block in fv.inspect(model).blocks:
                block.compile(backend="aot_eager")
        shard_(model)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        assert all(isinstance(block, FSDPModule) for block in model.blocks)
    return losses(model, torch.optim.AdamW(model.parameters(), lr=1e-3), range(STEPS), alone=kind == "alone")


def resumed(reduction: fv.Reduction, place: Path) -> list[float]:
    """Half of the steps, a checkpoint of which every process writes its own shards, and the rest in a new model."""
    first = shard_(make(reduction))
    optimizer = torch.optim.AdamW(first.parameters(), lr=1e-3)
    found = losses(first, optimizer, range(STEPS // 2), alone=False)
    weights, state = get_state_dict(first, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=place)
    second = shard_(make(reduction, seed=1))
    optimizer = torch.optim.AdamW(second.parameters(), lr=1e-3)
    weights, state = get_state_dict(second, optimizer)
    kept = {"model": weights, "optimizer": state}
    dcp.load(kept, checkpoint_id=place)
    set_state_dict(second, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
    return found + losses(second, optimizer, range(STEPS // 2, STEPS), alone=False)


def inferred(reduction: fv.Reduction) -> float:
    """The largest difference of predictions between a sharded and a plain model."""
    plain, model = make(reduction).eval(), shard_(make(reduction)).eval()
    images = data(0)[0]
    with torch.no_grad():
        return float((plain(images) - model(images)).abs().max())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, object] = {}
    for name, reduction in CASES.items():
        kinds = ("ddp", "fsdp") if name == "masked" else ("alone", "ddp", "fsdp")
        found[name] = {kind: trained(kind, reduction) for kind in kinds} | {"inference": inferred(reduction)}
    for name in ("select", "merge", "learned"):
        found[name]["compiled"] = trained("compiled", CASES[name])  # type: ignore[index]
        place = Path(sys.argv[1]) / name
        found[name]["resumed"] = resumed(CASES[name], place)  # type: ignore[index]
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
