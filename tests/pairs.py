"""Which methods and families are tried together: the pairs that can differ, not the full product.

The contract holds its laws for pairs of a method and a family. Not every pair can tell something new, because the two
meet in few places:

- A method sees a block through the engine alone: its site, the scores it needs, whether attention reads sizes,
  whether it trains by masks, whether it has a module (``asks_of_engine``). Methods that ask for the same run through
  the same lines of the engine and of a block's pieces. So one method of every such kind is paired with one family of
  every *kind of block* (``Family.block``: the families that share one are run by the same ``BlockPieces``).
  What a block can notice of a method is less: which pieces are called, on what (``asks_of_blocks``). So it is one
  method of each such kind for all but the first kind of block of a library.
- What a method computes itself depends on the tensors it gets, which look the same for all blocks, and on the prefix:
  so every method and every variant of it runs on one family with a class token and registers, and every method on one
  family without any prefix token.
- A family adds its embedding, prefix tokens, options of its blocks (gates, norms, LayerScale) and its head, which
  reads tokens that were merged, masked, pooled without weights, or left alone because only keys were reduced. So every
  family is paired with one method per site, and these four are chosen to leave such tokens.

``PAIRS`` is the union of the three. ``FEW_PAIRS`` is for laws that take seconds to check (compile, export) and that a
method or a family breaks by its own code: a value read into Python, a state kept, a class that does not travel. There
every method, every variant and every family occurs once, each method with another family. ``COMPILED_PAIRS`` leaves
out variants and families that run no other code of ours; export traces those too.

A new family is one entry in ``FAMILIES``; a new method none at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import foveate as fv
from foveate.methods import MaskTrainedMethod, Site
from zoo import (
    DEPTH,
    FAMILIES,
    ONE_PER_BLOCK,
    ONE_PER_LIBRARY,
    WITHOUT_PREFIX,
    defaults,
    family_of,
    fits,
    made,
    reduced,
    variants,
)

Pair = tuple[fv.Method, str]


def _pairs(methods: Iterable[fv.Method], families: Iterable[str]) -> list[Pair]:
    return [(method, family) for family in families for method in methods if fits(method, family)]


def asks_of_engine(method: fv.Method) -> tuple[Any, ...]:
    """All that the engine reads of a method on its way through a block; equal ones run the same lines."""
    needs = None if method.needs_class_token else method.needs(False)
    learns = any(key.startswith("foveate.") for key in reduced(ONE_PER_BLOCK[0], method).state_dict())
    asks = (method.site, method.needs(True), needs, method.proportional_attention, method.uses_size, learns)
    by_masks = isinstance(method, MaskTrainedMethod)
    return (*asks, by_masks, method.heads_weigh_by_size, method.needs_class_token)


def asks_of_blocks(method: fv.Method) -> tuple[Any, ...]:
    """All that decides which pieces of a block are called, and on what."""
    masks = isinstance(method, MaskTrainedMethod)
    return (method.site, method.needs(True), method.proportional_attention, masks)


def _one_per_kind_of_method(asks: Callable[[fv.Method], tuple[Any, ...]] = asks_of_engine) -> list[fv.Method]:
    return list({asks(method): method for method in [*variants(), *defaults()]}.values())


ONE_PER_SITE: tuple[fv.Method, ...] = (fv.DynamicViT(), fv.ToMe(), fv.HVTPool(), fv.ClusterAttention())
"""Their tokens are chosen by a module and masked in training; merged; pooled, and not weighed by heads; all there."""


def _is_several(method: fv.Method) -> bool:
    """Whether blocks have different methods. Each block sees one of them; what that one asks is tried alone."""
    return any(method.in_block(block, DEPTH) is not method for block in range(DEPTH))


def _one_each(methods: Iterable[fv.Method], families: Iterable[str]) -> list[Pair]:
    """Every one of the methods and of the families once or more, in few pairs."""
    # heads that read patch tokens meet methods that merge them, so that sizes reach these heads
    waiting = sorted(families, key=lambda name: not _head_reads_patches(name))
    made: list[Pair] = []
    for method in sorted(methods, key=lambda m: not _merges(m)):
        waiting = waiting or list(ONE_PER_BLOCK)
        family = next((name for name in waiting if fits(method, name)), ONE_PER_BLOCK[0])
        waiting = [name for name in waiting if name != family]
        made.append((method, family))
    served = {family for method, family in made if _merges(method) or not _head_reads_patches(family)}
    return made + _pairs([fv.ToMe()], [name for name in families if name not in served])


def _merges(method: fv.Method) -> bool:
    return method.uses_size and method.site is not Site.KV


def _one_per_forward() -> list[str]:
    """One family of every class, kind of block and kind of pooling: what code of ours, and not of a library, runs."""
    models = {name: made(name) for name in reversed(FAMILIES)}
    kinds = {(FAMILIES[n].block, type(m), getattr(m, "global_pool", None)): n for n, m in models.items()}
    return list(kinds.values())[::-1]


def _head_reads_patches(family: str) -> bool:
    return family_of(made(family)).shape().head_reads_patches


FEW_PAIRS = _one_each([*defaults(), *variants()], FAMILIES)
"""For laws that are slow to check, and that a method, a family or a kind of block breaks by itself."""

COMPILED_PAIRS = _one_each(dict.fromkeys([*defaults(), *_one_per_kind_of_method()]), _one_per_forward())
"""For ``torch.compile``, which is slower still: the engine's paths and our own forward methods, not every option."""

PAIRS = list(
    dict.fromkeys(
        _pairs([*defaults(), *variants()], ONE_PER_BLOCK[:1])
        + _pairs(defaults(), [WITHOUT_PREFIX])
        + _pairs(_one_per_kind_of_method(), ONE_PER_LIBRARY)
        + _pairs([m for m in _one_per_kind_of_method(asks_of_blocks) if not _is_several(m)], ONE_PER_BLOCK)
        + _pairs(ONE_PER_SITE, FAMILIES)
    )
)
"""The pairs that can differ, as the head of this file explains."""


def pair_id(pair: tuple[fv.Method, str]) -> str:
    method, family = pair
    options = ",".join(
        f"{f.name}={getattr(getattr(method, f.name), 'value', getattr(method, f.name))}"
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != f.default
    )
    return f"{method.name}{f'({options})' if options else ''}-{family}"
