"""The one value of the library: which tokens go where, with what weight.

An ``Assignment`` is a list of weighted edges from ``num_in`` input tokens to ``num_out`` output slots, one list
per image. Selection, fusion, merging, clustering and overlapping pooling windows differ only in their edges, so
one ``pool`` applies them all, one ``unpool`` spreads features back, and one ``compose`` chains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Reduce = Literal["sum", "max"]


@dataclass(frozen=True)
class Assignment:
    """Weighted edges ``src -> dst``; pooled slot j holds ``y_j = sum over edges e into j of w_e * x_src(e)``.

    Three fields may be ``None``, which is what makes the common cases fast:
    ``src=None``: edge e leaves token e (every token has one edge: merging, clustering);
    ``dst=None``: edge e reaches slot e (every slot has one edge: selection);
    ``weight=None``: every weight is one.
    An edge of weight zero is no edge: it pads images that have fewer edges than others.
    """

    src: Tensor | None  # (B, E) token each edge leaves
    dst: Tensor | None  # (B, E) slot it reaches
    weight: Tensor | None  # (B, E)
    num_in: int
    num_out: int
    anchored: bool = False
    """Every token has one edge, edge j < num_out reaches slot j, and the weights of each slot sum to one.

    Pooling then starts from the first token of each slot and adds only what the few others change.
    """

    def __post_init__(self) -> None:
        shapes = {tuple(t.shape) for t in (self.src, self.dst, self.weight) if t is not None}
        if len(shapes) > 1 or any(len(shape) != 2 for shape in shapes):
            raise ValueError(f"An Assignment's src, dst and weight must share one (B, E) shape; got {shapes}.")
        if not shapes and self.num_in != self.num_out:
            raise ValueError(f"An Assignment without edges is the identity; got {self.num_in} in, {self.num_out} out.")
        for name, edges, ends in (("src", self.src, self.num_in), ("dst", self.dst, self.num_out)):
            # an absent side numbers the edges, so their number must equal the tokens or slots it numbers
            if edges is None and shapes and (other := next(iter(shapes))[1]) != ends:
                raise ValueError(f"An Assignment without {name} needs {ends} edges, one for each; got {other}.")

    def edges(self, batch: int, device: torch.device | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The three fields written out in full, each (B, E)."""
        given = [t for t in (self.src, self.dst, self.weight) if t is not None]
        count = given[0].shape[1] if given else self.num_out
        device = given[0].device if given else device
        running = torch.arange(count, device=device).expand(batch, count)
        src = running if self.src is None else self.src
        dst = running if self.dst is None else self.dst
        weight = torch.ones(batch, count, device=device) if self.weight is None else self.weight
        return src, dst, weight

    def behind_prefix(self, prefix: int) -> Assignment:
        """The same edges for a sequence whose first ``prefix`` tokens stay as they are."""
        if prefix == 0:
            return self
        return Assignment(
            _prepend_range(self.src, prefix),
            _prepend_range(self.dst, prefix),
            None if self.weight is None else torch.nn.functional.pad(self.weight, (prefix, 0), value=1.0),
            self.num_in + prefix,
            self.num_out + prefix,
            self.anchored,
        )


def selection(index: Tensor, num_in: int) -> Assignment:
    """Keep the tokens named by ``index`` (B, K), in that order."""
    return Assignment(index, None, None, num_in, index.shape[1])


def partition(owner: Tensor, num_out: int, weight: Tensor | None = None) -> Assignment:
    """Send token i to slot ``owner[i]`` (B, N) with ``weight[i]``, taken as it is."""
    return Assignment(None, owner, weight, owner.shape[1], num_out)


def weighted_means(owner: Tensor, num_out: int, weight: Tensor | None = None) -> Assignment:
    """Like ``partition``, with weights scaled to sum to one in each slot, so that pooling is a weighted mean."""
    raw = torch.ones(owner.shape, device=owner.device) if weight is None else weight
    total = _add_into_slots(raw.unsqueeze(-1), owner, num_out)  # (B, K, 1)
    return partition(owner, num_out, raw / take(total, owner).squeeze(-1))


def anchored_means(
    anchor: Tensor, joining: Tensor, slot: Tensor, num_in: int, weight: Tensor | None = None
) -> Assignment:
    """Slot j is the mean of token ``anchor[j]`` (B, K) and of the tokens ``joining`` (B, R) whose ``slot`` is j.

    The mean is weighted by ``weight`` (B, num_in). For merging a few of many tokens this says, and costs, less than
    ``weighted_means``; every token must be an anchor or join one.
    """
    b, k = anchor.shape
    src = torch.cat([anchor, joining], dim=1)
    dst = torch.cat([torch.arange(k, device=anchor.device).expand(b, k), slot], dim=1)
    raw = torch.ones(src.shape, device=src.device) if weight is None else weight.gather(1, src)
    total = raw[:, :k].scatter_add(1, slot, raw[:, k:])
    return Assignment(src, dst, raw / total.gather(1, dst), num_in, k, anchored=True)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` (B, K) of x (B, N, C), as (B, K, C)."""
    b, n, c = x.shape
    # one flat index_select: three times as fast on a CPU as gather with an expanded index
    return x.reshape(b * n, c).index_select(0, _flat(index, n)).view(b, index.shape[1], c)


def pool(x: Tensor, a: Assignment, reduce: Reduce = "sum") -> Tensor:
    """Apply ``a`` to tokens x (B, N, C): (B, num_out, C). ``reduce="max"`` takes maxima over edges, not sums."""
    _check_tokens(x, a.num_in, "pool", "input tokens")
    if a.anchored and reduce == "sum":
        return _pool_anchored(x, a)
    rows = x if a.src is None else take(x, a.src)
    if reduce == "max":
        return _max_into_slots(rows, a).to(x.dtype)
    if a.weight is not None:
        rows = rows * a.weight.unsqueeze(-1)  # float32 weights lift half precision, so sums keep their digits
    elif a.dst is not None and rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    if a.dst is not None:
        rows = _add_into_slots(rows, a.dst, a.num_out)
    return rows.to(x.dtype)


def pool_size(size: Tensor, a: Assignment) -> Tensor:
    """How many patches each slot stands for, from ``size`` (B, N); a token with several edges shares its size."""
    if a.dst is None and a.src is not None and a.weight is None:  # selection
        return take(size.unsqueeze(-1), a.src).squeeze(-1)
    src, dst, weight = a.edges(size.shape[0], size.device)
    if a.anchored:
        members = size.gather(1, src)
        return members[:, : a.num_out].scatter_add(1, dst[:, a.num_out :], members[:, a.num_out :])
    part = _shares(a, src, weight).unsqueeze(-1) * take(size.unsqueeze(-1), src)
    return _add_into_slots(part, dst, a.num_out).squeeze(-1)


def unpool(y: Tensor, a: Assignment, fill: Tensor | None = None) -> Tensor:
    """Spread slots y (B, num_out, C) back to the input tokens: (B, num_in, C).

    A token gets the mean of the slots it has an edge to; a token without an edge (dropped) gets its row of
    ``fill`` (B, num_in, C), or zeros.
    """
    _check_tokens(y, a.num_out, "unpool", "output slots")
    if a.src is None and a.dst is not None and a.weight is None:
        return take(y, a.dst)
    src, dst, weight = a.edges(y.shape[0], y.device)
    rows = take(y, dst) * _shares(a, src, weight).unsqueeze(-1)
    spread = _add_into_slots(rows, src, a.num_in).to(y.dtype)
    if fill is None:
        return spread
    return torch.where(_out_degree(a, src, weight).unsqueeze(-1) > 0, spread, fill)


def compose(first: Assignment, then: Assignment, batch: int, device: torch.device | None = None) -> Assignment:
    """One assignment equal to applying ``first`` and then ``then``. For traces, not for hot paths."""
    if first.num_out != then.num_in:
        raise ValueError(f"compose: the first ends in {first.num_out} slots, the second starts at {then.num_in}.")
    src1, dst1, weight1 = first.edges(batch, device)
    src2, dst2, weight2 = then.edges(batch, src1.device)
    if not src2.shape[1]:  # nothing is kept
        return Assignment(src2, dst2, weight2, first.num_in, then.num_out)
    table = _edges_by_source(src2, weight2, then.num_in)  # (B, M, D) edge of `then`, or -1
    degree = table.shape[-1]
    next_edge = take(table, dst1).flatten(1)  # (B, E1 * D)
    index = next_edge.clamp(min=0)
    found = (next_edge >= 0) & (weight1.repeat_interleave(degree, 1) != 0)
    weight = weight1.repeat_interleave(degree, 1) * weight2.gather(1, index) * found
    dst = dst2.gather(1, index)
    return Assignment(src1.repeat_interleave(degree, 1), dst, weight, first.num_in, then.num_out)


def slot_weights(a: Assignment, batch: int, device: torch.device | None = None) -> Tensor:
    """Sum of the weights that reach each slot, (B, num_out): one everywhere when the slots are means."""
    _, dst, weight = a.edges(batch, device)
    return _add_into_slots(weight.unsqueeze(-1), dst, a.num_out).squeeze(-1)


def _pool_anchored(x: Tensor, a: Assignment) -> Tensor:
    """y_j = x_anchor + sum over the others e of w_e (x_e - x_anchor), the same mean in fewer operations."""
    k, (b, _, c) = a.num_out, x.shape
    src, dst, weight = a.edges(b)
    anchors, slot = take(x, src[:, :k]), _flat(dst[:, k:], k)
    rows = anchors.view(b * k, c)
    others = x.reshape(-1, c).index_select(0, _flat(src[:, k:], a.num_in))
    change = (others - rows.index_select(0, slot)) * weight[:, k:].reshape(-1, 1)
    return rows.index_add_(0, slot, change.to(x.dtype)).view(b, k, c)


def _check_tokens(x: Tensor, expected: int, verb: str, what: str) -> None:
    if x.dim() != 3 or x.shape[1] != expected:
        raise ValueError(f"{verb}: the assignment has {expected} {what}; got a tensor of shape {tuple(x.shape)}.")


def _flat(index: Tensor, n: int) -> Tensor:
    """Row numbers of ``index`` (B, K) after (B, N, C) became (B * N, C)."""
    if index.shape[0] == 1:
        return index.reshape(-1)
    offset = torch.arange(index.shape[0], device=index.device).unsqueeze(1) * n
    return (index + offset).reshape(-1)


def _add_into_slots(rows: Tensor, dst: Tensor, num_out: int) -> Tensor:
    b, e, c = rows.shape
    out = rows.new_zeros(b * num_out, c)
    return out.index_add(0, _flat(dst, num_out), rows.reshape(b * e, c)).view(b, num_out, c)


def _max_into_slots(rows: Tensor, a: Assignment) -> Tensor:
    b, _, c = rows.shape
    if a.weight is not None:
        rows = rows.masked_fill((a.weight == 0).unsqueeze(-1), -torch.inf)
    if a.dst is None:
        return rows
    out = rows.new_full((b * a.num_out, c), -torch.inf)
    index = _flat(a.dst, a.num_out).unsqueeze(-1).expand(-1, c)
    return out.scatter_reduce(0, index, rows.reshape(-1, c), "amax").view(b, a.num_out, c)


def _out_degree(a: Assignment, src: Tensor, weight: Tensor) -> Tensor:
    return _add_into_slots((weight != 0).float().unsqueeze(-1), src, a.num_in).squeeze(-1)


def _shares(a: Assignment, src: Tensor, weight: Tensor) -> Tensor:
    """(B, E): one over the number of edges that leave the edge's token; zero for padding."""
    if a.src is None and a.weight is None:
        return weight
    present = (weight != 0).float()
    if a.src is None:
        return present
    degree = take(_out_degree(a, src, weight).unsqueeze(-1), src).squeeze(-1)
    return present / degree.clamp(min=1)


def _edges_by_source(src: Tensor, weight: Tensor, num_in: int) -> Tensor:
    """(B, num_in, D) numbers of the edges that leave each token, -1 where it has fewer than D."""
    b, e = src.shape
    key = torch.where(weight != 0, src, num_in)  # padding sorts behind every token
    sorted_src, order = key.sort(dim=1, stable=True)
    place = torch.arange(e, device=src.device) - torch.searchsorted(sorted_src, sorted_src)
    real = sorted_src < num_in
    degree = int((place * real).amax()) + 1 if e else 1
    table = src.new_full((b, (num_in + 1) * degree), -1)
    table.scatter_(1, sorted_src * degree + place * real, torch.where(real, order, -1))
    return table.view(b, num_in + 1, degree)[:, :num_in]


def _prepend_range(index: Tensor | None, prefix: int) -> Tensor | None:
    if index is None:
        return None
    head = torch.arange(prefix, device=index.device).expand(index.shape[0], prefix)
    return torch.cat([head, index + prefix], dim=1)
