"""A reduced model: one child module that holds the reduction, and a class of its own.

``attach_`` changes the class of the model object to a subclass made of its family's mixin and the model's class, and
adds one child module, ``foveate``. Parameters and state-dict keys are unchanged; blocks can run pieces inside their
``forward`` (`inside.py`). ``detach_`` undoes all.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from foveate.adapters.inside import dismiss_
from foveate.adapters.unit_qk import UnitScales
from foveate.costs import ModelShape, Plan, at_grid, step_shape
from foveate.methods.base import Method
from foveate.methods.learned import LearnedMethod, MaskTrainedMethod
from foveate.reductions import Reduction, UnitQK
from foveate.schedules import Schedule

if TYPE_CHECKING:
    from foveate.adapters.family import Family

CHILD = "foveate"
"""Name of the child module of a reduced model, and prefix of the names of its parameters."""


class Reducer(nn.Module):
    """The child module ``foveate``: the reduction, its plan, and the method's parameters if it has any."""

    def __init__(self, reduction: Reduction, shape: ModelShape) -> None:
        super().__init__()
        self.reduction = reduction
        self.shape = shape
        self.plan = reduction.plan(shape)
        self.unit_scales = None if reduction.unit_qk is None else UnitScales(reduction.unit_qk, shape)
        self.learned = nn.ModuleDict()
        if isinstance(self.method, LearnedMethod):
            for block in filter(self.plan.acts_in, range(shape.depth)):
                module = self.method.build(step_shape(shape, self.plan, block), block)
                if module is not None:
                    self.learned[str(block)] = module

    @property
    def method(self) -> Method | None:
        return self.reduction.method

    @property
    def schedule(self) -> Schedule | None:
        return self.reduction.schedule

    @property
    def exact_last_block(self) -> bool:
        return self.reduction.exact_last_block

    @property
    def unit_qk(self) -> UnitQK | None:
        return self.reduction.unit_qk

    @property
    def heads_weigh_by_size(self) -> bool:
        """Whether heads that read patch tokens weigh each by the number of patches it stands for."""
        return self.method is not None and self.method.heads_weigh_by_size

    @property
    def masks(self) -> bool:
        """Whether tokens are currently masked instead of removed, as some methods do in training."""
        return isinstance(self.method, MaskTrainedMethod) and self.training

    @property
    def modules_by_block(self) -> dict[int, nn.Module]:
        """The method's modules by block; empty for a method that does not learn."""
        return {int(name): module for name, module in self.learned.items()}

    @property
    def removes_tokens(self) -> bool:
        """Whether any block reduces tokens."""
        return any(self.plan.acts_in(block) for block in range(self.shape.depth))

    def plan_for(self, grid: tuple[int, int]) -> Plan:
        """The plan for a patch grid."""
        return self.plan if grid == self.shape.grid else self.reduction.plan(at_grid(self.shape, grid))

    def reschedule(self, schedule: Schedule) -> None:
        """Change the schedule; learned weights stay."""
        reduction = self.reduction.with_schedule(schedule)
        plan = reduction.plan(self.shape)
        if self.learned:
            self.check_learned([block for block in range(self.shape.depth) if plan.acts_in(block)])
        self.reduction, self.plan = reduction, plan

    def check_learned(self, blocks: Iterable[int]) -> None:
        """Raise ``ValueError`` if the method would act in a block without learned weights."""
        without = [block for block in blocks if str(block) not in self.learned]
        if without:
            raise ValueError(
                f"{type(self.method).__name__} has no learned weights for block {without[0]}. Reduce the model again."
            )

    def resized(self, shape: ModelShape) -> Reducer:
        """The same reduction for images of another size, with the learned weights."""
        new = Reducer(self.reduction, shape)
        new.unit_scales = self.unit_scales
        for name in new.learned.keys() & self.learned.keys():
            assert isinstance(self.method, LearnedMethod)
            self.method.resize(self.learned[name], new.learned[name])
        reference = next(self.parameters(), None)
        if reference is not None:
            new.to(reference.device, reference.dtype)
        return new.train(self.training)

    def drop_blocks_from(self, depth: int) -> None:
        """Remove learned weights of blocks that the model no longer has."""
        for block in [block for block in self.modules_by_block if block >= depth]:
            del self.learned[str(block)]

    def no_weight_decay(self) -> set[str]:
        """Names, within the model, of parameters without weight decay."""
        exempt = {name: getattr(module, "no_weight_decay", ()) for name, module in self.learned.items()}
        return {f"{CHILD}.learned.{block}.{parameter}" for block, names in exempt.items() for parameter in names}

    def extra_repr(self) -> str:
        return str(self.reduction)


class Reduced:
    """Base of every mixin: marks a reduced model and makes it work with pickle and deepcopy."""

    foveate: Reducer
    _foveate_family: ClassVar[type]  # set by reduced_class, like the next one; transformers evaluates these annotations
    _foveate_base: ClassVar[type]

    @property
    def _family(self) -> Any:
        """The model's family, bound to it."""
        return self._foveate_family(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank_reduced, (self._foveate_family, self._foveate_base), self.__dict__.copy()


def _blank_reduced(family: type[Family], base: type) -> Any:
    cls: Any = reduced_class(family, base)
    return cls.__new__(cls)


def reduced_class(family: type[Family], base: type) -> type:
    """The class of a reduced ``base``. It has the same name, so that printing and saving look the same."""
    return _make_class(family, base)


@cache
def _make_class(family: Any, base: Any) -> type:
    namespace = {"_foveate_family": family, "_foveate_base": base, "__doc__": base.__doc__}
    # transformers looks up what a model can record by the text of its class
    namespace |= {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (family.mixin, base), namespace)


def copy_root(model: Any, path: str = "") -> Any:
    """A second root over the same modules; reducing and restoring change only the root.

    Args:
        model: the model.
        path: the part that is reduced, if it is inside; everything on the way to it is new, too.
    """
    root = copy.copy(model)
    root._modules = dict(model._modules)
    if path:
        name, _, rest = path.partition(".")
        root._modules[name] = copy_root(root._modules[name], rest)
    return root


def detach_(part: Any, shared: bool = False) -> None:
    """Undo ``attach_``; blocks that are ``shared`` with another reduced model stay as they are."""
    check_whole(part, "Restore it before fully_shard")
    if not shared:
        dismiss_(part._family.blocks)
    delattr(part, CHILD)
    part.__class__ = part._foveate_base


def check_whole(model: nn.Module, way_out: str) -> None:
    """Raise a ValueError for a model whose parameters are sharded: its class and its modules must not change then."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # slow to import, and who shards a model has done it
    if fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules()):
        raise ValueError(f"This {type(model).__name__} is sharded by FSDP. {way_out}.")
