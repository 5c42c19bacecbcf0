"""What an adapter is: the only code that reaches into a model of some library.

An adapter describes a model (its shape, what its head reads), runs it piece by piece, and supplies a mixin whose
methods replace the model's own once it is reduced. ``reduce_`` changes the class of the one object it is given, to
a subclass made of that mixin and the model's class, and adds one child module, ``foveate``. Blocks, parameters and
state-dict keys stay as they are; ``restore_`` undoes both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from foveate.cost import ModelShape, Plan, at_grid, make_plan, step_shape
from foveate.methods.base import Method
from foveate.schedule import Schedule

CHILD = "foveate"
"""Name of the one child module a reduced model has, and so the prefix of a method's parameters."""


UnitQK = Literal["fixed", "learned"]
"""How queries and keys are normalised: with a scale of one, or one learned in each block."""


class UnsupportedModel(TypeError):
    """A model that no adapter understands. Reducing it anyway could only be silently wrong."""


class Heads(NamedTuple):
    """Queries, keys and values split into heads, each (B, H, N, D)."""

    q: Tensor
    k: Tensor
    v: Tensor


class BlockOps(ABC):
    """A transformer block in the pieces that reduction needs. One subclass per kind of block; no state.

    A whole block is ``x = x + after_attention(attend(project(normed(x))), normed(x))`` then ``x = mlp(x)``.
    """

    def whole(self, block: Any, x: Tensor) -> Tensor:
        """The block as its library runs it."""
        return block(x)

    @abstractmethod
    def normed(self, block: Any, x: Tensor) -> Tensor:
        """What attention reads: the first norm's output in a pre-norm block."""

    @abstractmethod
    def queries(self, block: Any, normed: Tensor) -> Tensor: ...

    @abstractmethod
    def keys_values(self, block: Any, normed: Tensor) -> tuple[Tensor, Tensor]: ...

    def project(self, block: Any, normed: Tensor) -> Heads:
        """All three at once, where a block can do that faster than one by one."""
        return Heads(self.queries(block, normed), *self.keys_values(block, normed))

    @abstractmethod
    def after_attention(self, block: Any, attended: Tensor, normed: Tensor) -> Tensor:
        """The update of the residual stream from ``attended`` (B, H, N_q, D): projection, scaling, drop path."""

    @abstractmethod
    def mlp(self, block: Any, x: Tensor) -> Tensor:
        """The stream after the second half of the block."""

    @abstractmethod
    def scale(self, block: Any) -> float: ...

    @abstractmethod
    def attention_dropout(self, block: Any) -> float:
        """Dropout on attention weights, 0 outside training."""


class Reduction(nn.Module):
    """How a model is reduced: the child module ``foveate``. It holds the method's parameters where it has any."""

    def __init__(
        self,
        method: Method,
        schedule: Schedule,
        shape: ModelShape,
        exact_last_block: bool = False,
        unit_scales: Any = None,
    ) -> None:
        super().__init__()
        self.method = method
        self.schedule = schedule
        self.exact_last_block = exact_last_block
        self.shape = shape
        self.plan = make_plan(shape, method, schedule, exact_last_block)
        self.unit_scales = unit_scales
        self.learned = nn.ModuleDict()
        for block in filter(self.plan.acts_in, range(shape.depth)):
            module = method.build(step_shape(shape, self.plan, block), block)
            if module is not None:
                self.learned[str(block)] = module

    @property
    def unit_qk(self) -> UnitQK | None:
        """How queries and keys are normalised, as ``reduce_`` was told."""
        return None if self.unit_scales is None else self.unit_scales.kind

    @property
    def modules_by_block(self) -> dict[int, nn.Module]:
        """The method's own modules, by the block they serve; empty for a method that learns nothing."""
        return {int(name): module for name, module in self.learned.items()}

    def plan_for(self, grid: tuple[int, int]) -> Plan:
        """The plan for an image of that many rows and columns of patches."""
        if grid == self.shape.grid:
            return self.plan
        return make_plan(at_grid(self.shape, grid), self.method, self.schedule, self.exact_last_block)

    def reschedule(self, schedule: Schedule) -> None:
        """Follow another schedule from now on; what the method has learned stays."""
        plan = make_plan(self.shape, self.method, schedule, self.exact_last_block)
        if self.learned:
            self.check_learned([block for block in range(self.shape.depth) if plan.acts_in(block)])
        self.schedule, self.plan = schedule, plan

    def check_learned(self, blocks: Iterable[int]) -> None:
        """Refuse to act in blocks for which there is nothing learned."""
        without = [block for block in blocks if str(block) not in self.learned]
        if without:
            raise ValueError(f"{type(self.method).__name__} has learned nothing for block {without[0]}; reduce again.")

    def resized(self, shape: ModelShape) -> Reduction:
        """The same for images of another size, with what the method has learned carried over."""
        new = Reduction(self.method, self.schedule, shape, self.exact_last_block, self.unit_scales)
        for name in new.learned.keys() & self.learned.keys():
            self.method.resize(self.learned[name], new.learned[name])
        reference = next(self.parameters(), None)
        if reference is not None:
            new.to(reference.device, reference.dtype)
        return new.train(self.training)

    def no_weight_decay(self) -> set[str]:
        """Parameters, by their names in the model, that weight decay is to spare."""
        spared = {name: getattr(module, "no_weight_decay", ()) for name, module in self.learned.items()}
        return {f"{CHILD}.learned.{block}.{parameter}" for block, names in spared.items() for parameter in names}

    def extra_repr(self) -> str:
        last = ", exact_last_block=True" if self.exact_last_block else ""
        unit = f", unit_qk={self.unit_qk!r}" if self.unit_qk else ""
        return f"{self.method!r}, {self.schedule!r}{last}{unit}"


class Keeper(ABC):
    """What is to be known of a kind of models to give them images, to save them and to build them again."""

    library: ClassVar[str]
    """In saved files."""

    @abstractmethod
    def matches(self, model: nn.Module) -> bool:
        """Whether this is the one to judge ``model``; an adapter's ``check`` then says whether it can be reduced."""

    @abstractmethod
    def blocks(self, model: Any) -> list[nn.Module]: ...

    @abstractmethod
    def image_size(self, model: Any) -> tuple[int, int, int]:
        """Channels, height and width of the images the model was made for."""

    @abstractmethod
    def recipe(self, model: Any) -> dict[str, Any] | None:
        """Plain data from which ``rebuild`` makes an equal, untrained model; None where that cannot be promised."""

    @abstractmethod
    def rebuild(self, recipe: dict[str, Any]) -> nn.Module: ...


class Adapter(Keeper):
    """One family of models that can be reduced. Stateless: every method takes the model."""

    family: ClassVar[str]
    """For people: named when a model is refused."""
    mixin: ClassVar[type[Reduced]]
    """Methods that replace the model's own once it is reduced."""

    @abstractmethod
    def check(self, model: Any) -> None:
        """Raise ``UnsupportedModel`` for a variant this adapter does not understand."""

    @abstractmethod
    def ops(self, model: Any) -> BlockOps: ...

    @abstractmethod
    def num_prefix(self, model: Any) -> int: ...

    @abstractmethod
    def has_cls(self, model: Any) -> bool: ...

    @abstractmethod
    def grid(self, model: Any, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of an image; ``ValueError`` for a size the model does not take."""

    @abstractmethod
    def shape(self, model: Any, grid: tuple[int, int]) -> ModelShape:
        """Its sizes, for images of that many rows and columns of patches."""

    @abstractmethod
    def embed(self, model: Any, images: Tensor, **options: Any) -> Tensor:
        """Tokens that enter the first block, (B, P + N, C)."""

    @abstractmethod
    def final_norm(self, model: Any, tokens: Tensor) -> Tensor: ...

    def checkpointing(self, model: Any) -> bool:
        """Whether blocks are to be recomputed in the backward pass."""
        return False


class Reduced:
    """Root of every mixin: marks a reduced model and lets it travel through pickle and deepcopy."""

    foveate: Reduction
    _foveate_adapter: ClassVar[Adapter]  # set beside each adapter
    _foveate_mixin: ClassVar[type]  # set by reduced_class, as is the next
    _foveate_base: ClassVar[type]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank_reduced, (self._foveate_mixin, self._foveate_base), self.__dict__.copy()


def _blank_reduced(mixin: type, base: type) -> Any:
    cls: Any = reduced_class(mixin, base)
    return cls.__new__(cls)


def reduced_class(mixin: type, base: type) -> type:
    """The class a reduced ``base`` has. It keeps the name, so that printing and saving read as before."""
    return _make_class(mixin, base)


@cache
def _make_class(mixin: Any, base: Any) -> type:
    namespace = {"_foveate_mixin": mixin, "_foveate_base": base, "__doc__": base.__doc__}
    return type(base.__name__, (mixin, base), namespace)


def reduction_of(model: nn.Module) -> Reduction | None:
    """How ``model`` is reduced; None if it is not."""
    return model.foveate if isinstance(model, Reduced) else None


def linear_macs(*modules: nn.Module | None) -> int:
    """Multiply-accumulates per token of all linear layers inside ``modules``."""
    layers = (layer for m in modules if m is not None for layer in m.modules())
    return sum(layer.weight.numel() for layer in layers if isinstance(layer, nn.Linear))
