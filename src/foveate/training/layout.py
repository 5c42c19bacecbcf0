"""Where a run's parameters are: a copy in every process (one process, DDP), or a shard in each (FSDP2).

A checkpoint always holds whole tensors, so a run writes the same files either way.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn, optim

import foveate as fv
from foveate.adapters import inspect, reducer_of
from foveate.data import Batch
from foveate.training.checkpoint import Checkpoint
from foveate.training.config import TrainConfig
from foveate.training.objectives import Objective

Tensors = dict[str, Tensor]


class Replicated:
    """Every process has all parameters; accelerate wraps the objective in DDP if there are several."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def place_(self, objective: Objective) -> None:
        """Put the parameters where they belong, before an optimizer takes them."""
        objective.to(self.accelerator.device)

    def prepare(self, objective: Objective, optimizer: optim.Optimizer) -> tuple[Any, Any]:
        """What the loop calls for the loss, and the optimizer that it steps."""
        return self.accelerator.prepare(objective, optimizer)

    def any(self, here: bool) -> bool:
        """Whether ``here`` is true in any process: clocks and signals differ, but all must do the same."""
        if self.accelerator.num_processes == 1:
            return here
        return bool(self.accelerator.reduce(torch.tensor(float(here), device=self.accelerator.device), "sum").item())

    def finite(self, objective: Objective) -> bool:
        """Whether all weights of this process are numbers."""
        return all(bool(local(p).isfinite().all()) for p in objective.parameters())

    def whole(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Whole tensors for a checkpoint."""
        return dict(tensors)

    def as_here(self, found: Checkpoint, objective: Objective, optimizer: optim.Optimizer) -> Checkpoint:
        """A checkpoint's tensors as this process holds them."""
        return found

    def savable(self, model: nn.Module) -> nn.Module:
        """The model with whole parameters."""
        return model

    @contextmanager
    def evaluating(self, objective: Objective, batches: Iterable[Batch]) -> Iterator[Iterable[Batch]]:
        """The batches of an evaluation of ``objective.model``."""
        yield batches


class Sharded(Replicated):
    """Every process has a shard of each parameter: FSDP2, by block and for all the rest."""

    def place_(self, objective: Objective) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard  # slow to import

        super().place_(objective)
        main = self.accelerator.is_main_process
        self._plain = copy.deepcopy(objective.model).cpu() if main else None  # what is saved
        self._blank = torch.zeros(1, *inspect(objective.model).image_size, device=self.accelerator.device)
        mesh = init_device_mesh(self.accelerator.device.type, (self.accelerator.num_processes,))
        for block in inspect(objective.model).blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(objective, mesh=mesh)  # the root: its forward is what a training step calls

    def prepare(self, objective: Objective, optimizer: optim.Optimizer) -> tuple[Any, Any]:
        return objective, self.accelerator.prepare(optimizer)

    def whole(self, tensors: Mapping[str, Tensor]) -> Tensors:
        return {name: _whole(tensor) for name, tensor in tensors.items()}

    def as_here(self, found: Checkpoint, objective: Objective, optimizer: optim.Optimizer) -> Checkpoint:
        own = objective.state_dict()
        weights = {name: _like(tensor, own.get(name)) for name, tensor in found.tensors["objective"].items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {}
        for path, tensor in found.tensors.get("optimizer", {}).items():
            index, _, name = path.partition("/")
            place = int(index) if index.isdecimal() and name != "step" else len(parameters)
            state[path] = _like(tensor, parameters[place] if place < len(parameters) else None)
        return replace(found, tensors={**found.tensors, "objective": weights, "optimizer": state})

    def savable(self, model: nn.Module) -> nn.Module:
        whole = self.whole(model.state_dict())
        if self._plain is None:
            return model
        self._plain.load_state_dict(whole)
        now = reducer_of(model)
        if now is not None and now.schedule is not None:  # a warm-up has changed it
            fv.reschedule_(self._plain, now.schedule)
        return self._plain.eval()

    @contextmanager
    def evaluating(self, objective: Any, batches: Iterable[Batch]) -> Iterator[Iterable[Batch]]:
        objective.unshard()  # the root's own parameters; the model is called without its root here
        try:
            yield self._in_step(objective, batches)
        finally:
            objective.reshard()

    def _in_step(self, objective: Objective, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches; a process that has no more runs a blank image, because all gather each block together."""
        coming = iter(batches)
        while True:
            batch = next(coming, None)
            if not self.any(batch is not None):
                return
            if batch is not None:
                yield batch
            else:
                with torch.no_grad(), self.accelerator.autocast():
                    objective.predict(objective.model, self._blank)


def find_layout(config: TrainConfig, accelerator: Accelerator) -> Replicated:
    """The layout that ``run.shard`` names.

    Raises:
        ValueError: if the run cannot be sharded.
    """
    if config.run.shard != "fsdp":
        return Replicated(accelerator)
    if accelerator.num_processes < 2:
        raise ValueError(
            "run.shard=fsdp divides a model among processes, and this run has one. Start it with torchrun "
            "--nproc_per_node=N -m foveate train ..., or leave it out."
        )
    if config.optimizer.ema:
        raise ValueError("run.shard=fsdp keeps no moving average of the weights. Set optimizer.ema=0.")
    if config.objective.kind == "power-search":
        raise ValueError("run.shard=fsdp does not search PoWER's counts. Leave it out; the search needs one process.")
    return Sharded(accelerator)


def is_shard(tensor: Tensor) -> bool:
    """Whether this is a shard of a tensor (a DTensor)."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Any) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if is_shard(tensor) else tensor


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor().cpu() if is_shard(tensor) else tensor


def _like(tensor: Tensor, own: Any) -> Tensor:
    """A whole tensor, divided like ``own``, which has the same shape if the checkpoint fits."""
    from torch.distributed.tensor import distribute_tensor

    if own is None or not is_shard(own) or own.shape != tensor.shape:
        return tensor
    here = tensor.to(own.device)
    return distribute_tensor(here, own.device_mesh, own.placements, src_data_rank=None)  # everyone has read it
