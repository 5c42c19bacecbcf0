"""Work inside a block's own forward, so that everything attached to the block takes part.

A block that reduces tokens runs in pieces, in another order than its ``forward`` has them. Hooks on the block, FSDP's
sharding of it and ``block.compile()`` still see one call of the block: tokens in, tokens out. ``admit_`` gives the
block a ``forward`` that runs the work it is called with; without any, it does what it always did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

T = TypeVar("T")


def forward_or_work(block: Any, own: Callable[..., Any] | None, *args: Any, work: Any = None, **kwargs: Any) -> Any:
    """The ``forward`` of an admitted block; ``own`` is one that somebody else had put there before."""
    if work is not None:
        return work(*args)
    return type(block).forward(block, *args, **kwargs) if own is None else own(*args, **kwargs)


def admits(block: nn.Module) -> bool:
    """Whether the block runs work that it is called with."""
    return getattr(block.__dict__.get("forward"), "func", None) is forward_or_work


def admit_(blocks: Iterable[nn.Module]) -> None:
    for block in blocks:
        if not admits(block):
            block.forward = partial(forward_or_work, block, block.__dict__.get("forward"))


def dismiss_(blocks: Iterable[nn.Module]) -> None:
    """Undo ``admit_``."""
    for block in blocks:
        if admits(block):
            own = block.__dict__.pop("forward").args[1]
            if own is not None:
                block.forward = own


def run_inside(block: nn.Module, tokens: Tensor, work: Callable[[Tensor], tuple[Tensor, T]]) -> tuple[Tensor, T]:
    """Call ``block`` on ``tokens`` and let it run ``work``, which returns tokens and something else.

    Only tokens pass through the block's hooks, which may replace them.
    """
    if not admits(block):  # put in after the model was reduced, or dismissed by another model that shares it
        admit_([block])
    others: list[T] = []

    def tokens_of(x: Tensor) -> Tensor:
        tokens, other = work(x)
        others.append(other)
        return tokens

    return block(tokens, work=tokens_of), others[-1]
