"""Batches whose images differ in size: padded with a mask, or packed one behind the other.

Every such layout is taken apart into images. Those of one size run as an ordinary batch, so nothing is padded, no token
of one image meets one of another, and the result for an image does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from foveate.adapters.reduced import Reducer
from foveate.adapters.stream import Encoded

if TYPE_CHECKING:
    from foveate.adapters.family import Family


class Group(NamedTuple):
    """Images of one size, encoded together."""

    members: list[int]  # their numbers in the batch
    grid: tuple[int, int]
    encoded: Encoded
    hidden: tuple[Tensor, ...]  # tokens before the first block and after each; empty unless recorded


def encode_by_size(family: Family, images: Sequence[Tensor], record: bool = False) -> list[Group]:
    """Encode images (C, H, W) of different sizes."""
    sizes: dict[tuple[int, ...], list[int]] = {}
    for number, image in enumerate(images):
        sizes.setdefault(tuple(image.shape), []).append(number)
    groups = []
    for size, members in sizes.items():
        encoded = family.encode(torch.stack([images[number] for number in members]), record=record)
        hidden = (encoded.embedded, *family.tokens_by_block(encoded)) if record else ()
        groups.append(Group(members, family.grid_for(*size[-2:]), encoded, hidden))
    return groups


def in_order(groups: Sequence[Group], found: Sequence[Tensor]) -> list[Tensor]:
    """What was ``found`` for each group, one entry per image, as the images of the batch."""
    pairs = zip(groups, found, strict=True)
    numbered = [pair for group, rows in pairs for pair in zip(group.members, rows, strict=True)]
    return [one for _, one in sorted(numbered, key=lambda pair: pair[0])]


def padded(tokens: Sequence[Tensor], places: Sequence[Tensor | None], length: int) -> Tensor:
    """Tokens of each image (N, C) as (B, length, C): at their places, or in front; zero where there is none."""
    out = tokens[0].new_zeros(len(tokens), max(length, *(len(one) for one in tokens)), tokens[0].shape[-1])
    for row, one, place in zip(out, tokens, places, strict=True):
        row[slice(len(one)) if place is None or len(place) != len(one) else place] = one
    return out


def does_nothing(reducer: Reducer) -> bool:
    """Whether a model with this reduction computes what it does without: then its own forward runs."""
    return not reducer.removes_tokens and not reducer.exact_last_block and reducer.unit_qk is None
