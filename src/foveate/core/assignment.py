"""The central value of the library: which tokens go where, with what weight.

An ``Assignment`` is a list of weighted edges from ``num_in`` input tokens to ``num_out`` output slots, one list
per image. Selection, fusion, merging, clustering and overlapping pooling windows differ only in their edges, so
one ``pool`` applies them all, one ``unpool`` spreads features back, and one ``compose`` chains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from foveate.core.graphs import add_into_slots, exporting, flat_index, lengths, max_rows_into_slots, membership

Reduce = Literal["sum", "max"]


class Edges(NamedTuple):
    """All edges of an ``Assignment`` as full tensors, each (B, E)."""

    src: Tensor  # token it leaves
    dst: Tensor  # slot it reaches
    weight: Tensor  # zero for padding
    present: Tensor  # bool; false for padding


class Joining(NamedTuple):
    """Tokens that join a slot started by another token; the slot becomes the mean of all of them."""

    src: Tensor  # (B, R) token that joins
    dst: Tensor  # (B, R) slot it joins
    weight: Tensor  # (B, R) its share of that slot; the first token has the rest, 1 minus all shares


@dataclass(frozen=True)
class Assignment:
    """Weighted edges ``src -> dst``; pooled slot j holds ``y_j = sum over edges e into j of w_e * x_src(e)``.

    Four fields may be ``None``, which makes common cases fast:
    ``src=None``: edge e leaves token e (every token has one edge: merging, clustering);
    ``dst=None``: edge e reaches slot e (every slot has one edge: selection);
    ``weight=None``: every weight is one;
    ``present=None``: every edge is real. Otherwise edges that are not present are padding, for windows or images
    with fewer edges than others.
    If a few tokens merge into many that stay, ``joining`` holds the few, on top of a selection.

    Membership and weight are separate. An edge of weight zero adds nothing to the pooled slot, but its token still
    belongs there: sizes, traces and dense features follow membership.
    """

    src: Tensor | None  # (B, E) token each edge leaves
    dst: Tensor | None  # (B, E) slot it reaches
    weight: Tensor | None  # (B, E)
    num_in: int
    num_out: int
    joining: Joining | None = None
    sizes: Tensor | None = None
    """(B, num_out) sizes of the slots if already known; otherwise ``pool_size`` computes them."""
    present: Tensor | None = None  # (B, E) bool

    def __post_init__(self) -> None:
        shapes = [t.shape for t in (self.src, self.dst, self.weight, self.present) if t is not None]
        if any(len(shape) != 2 or shape != shapes[0] for shape in shapes):
            raise ValueError(f"An Assignment's src, dst, weight and present must share one (B, E) shape, got {shapes}.")
        if self.present is not None and self.present.dtype != torch.bool:
            raise ValueError(f"Assignment.present must be a bool tensor, got {self.present.dtype}.")
        if not shapes and self.num_in != self.num_out:
            raise ValueError(f"An Assignment without edges is the identity; got {self.num_in} in, {self.num_out} out.")
        for name, edges, ends in (("src", self.src, self.num_in), ("dst", self.dst, self.num_out)):
            # without src (dst), edge e belongs to token (slot) e, so both must have the same number
            if edges is None and shapes and (other := shapes[0][1]) != ends:
                raise ValueError(f"An Assignment without {name} needs {ends} edges, one for each; got {other}.")
        given = (self.dst, self.weight, self.present)
        if self.joining is not None and (self.src is None or any(field is not None for field in given)):
            raise ValueError(
                "An Assignment with joining extends a selection: it needs src, and takes no dst, weight or present."
            )

    @property
    def selects(self) -> bool:
        """Whether every slot is one unchanged token."""
        others = (self.dst, self.weight, self.present, self.joining)
        return self.src is not None and all(field is None for field in others)

    def edges(self, batch: int, device: torch.device | None = None) -> Edges:
        """All edges as full tensors, padding included."""
        given = [t for t in (self.src, self.dst, self.weight, self.present) if t is not None]
        count = given[0].shape[1] if given else self.num_out
        device = given[0].device if given else device
        src = _range(count, batch, device) if self.src is None else self.src
        dst = _range(count, batch, device) if self.dst is None else self.dst
        weight = torch.ones(batch, count, device=device) if self.weight is None else self.weight
        present = self.present
        if present is None:
            present = torch.ones(batch, count, dtype=torch.bool, device=device)
        else:
            weight = weight.masked_fill(~present, 0)
        edges = Edges(src, dst, weight, present)
        return edges if self.joining is None else _with_joining(edges, self.joining)

    def behind_prefix(self, prefix: int) -> Assignment:
        """The same edges for a sequence whose first ``prefix`` tokens are left unchanged."""
        if prefix == 0:
            return self
        more = self.joining
        return Assignment(
            _prepend_range(self.src, prefix),
            _prepend_range(self.dst, prefix),
            None if self.weight is None else torch.nn.functional.pad(self.weight, (prefix, 0), value=1.0),
            self.num_in + prefix,
            self.num_out + prefix,
            None if more is None else Joining(more.src + prefix, more.dst + prefix, more.weight),
            present=None if self.present is None else torch.nn.functional.pad(self.present, (prefix, 0), value=True),
        )


def selection(index: Tensor, num_in: int) -> Assignment:
    """Keep the tokens at ``index`` (B, K), in that order."""
    return Assignment(index, None, None, num_in, index.shape[1])


def partition(owner: Tensor, num_out: int, weight: Tensor | None = None) -> Assignment:
    """Send token i to slot ``owner[i]`` (B, N) with ``weight[i]``; weights are not normalized."""
    return Assignment(None, owner, weight, owner.shape[1], num_out)


def weighted_means(owner: Tensor, num_out: int, weight: Tensor | None = None) -> Assignment:
    """Like ``partition``, with weights scaled to sum to one in each slot, so that pooling is a weighted mean.

    The weights of a slot must not all be zero.
    """
    raw = torch.ones(owner.shape, device=owner.device) if weight is None else weight
    total = add_into_slots(raw.unsqueeze(-1), owner, num_out)  # (B, K, 1)
    return partition(owner, num_out, raw / take(total, owner).squeeze(-1))


def joined_means(first: Tensor, joining: Tensor, slot: Tensor, num_in: int, size: Tensor | None = None) -> Assignment:
    """Slot j is the mean of token ``first[j]`` (B, K) and of the tokens ``joining`` (B, R) whose ``slot`` is j.

    The mean is weighted by ``size`` (B, num_in). If few of many tokens merge, this is faster than ``weighted_means``.
    """
    own, part = _own_and_joining(first, joining, size)
    total = own.scatter_add(1, slot, part)
    more = Joining(joining, slot, part / total.gather(1, slot))
    return Assignment(first, None, None, num_in, first.shape[1], more, total)


def joined_sizes(first: Tensor, joining: Tensor, slot: Tensor, size: Tensor | None = None) -> Tensor:
    """The sizes of ``joined_means``, (B, K)."""
    own, part = _own_and_joining(first, joining, size)
    return own.scatter_add(1, slot, part)


def _own_and_joining(first: Tensor, joining: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor]:
    if size is None:
        return torch.ones(first.shape, device=first.device), torch.ones(joining.shape, device=joining.device)
    return size.gather(1, first), size.gather(1, joining)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` (B, K) of x (B, N, C), as (B, K, C)."""
    b, n, c = x.shape
    # one flat index_select: three times as fast on a CPU as gather with an expanded index
    return x.reshape(b * n, c).index_select(0, flat_index(index, n).reshape(-1)).view(b, index.shape[1], c)


def pool(x: Tensor, a: Assignment, reduce: Reduce = "sum", prefix: int = 0) -> Tensor:
    """Apply an assignment to tokens.

    Args:
        x: tokens (B, prefix + num_in, C).
        a: the assignment of all tokens but the first ``prefix``.
        reduce: ``"sum"`` for weighted sums over the edges of a slot, ``"max"`` for maxima, which ignore weights.
        prefix: number of leading tokens that are left unchanged.

    Returns:
        Tokens (B, prefix + num_out, C).

    Raises:
        ValueError: if the number of tokens does not match the assignment.
    """
    _check_tokens(x, a.num_in + prefix, "pool", "input tokens")
    if reduce == "sum" and a.selects:
        return _pick(x, a, prefix)
    if reduce == "sum" and a.joining is not None:
        return _pick_and_join(x, a, a.joining, prefix)
    return _sum_or_max(x, a.behind_prefix(prefix), reduce)


def pool_at_mean_norm(x: Tensor, a: Assignment, prefix: int = 0) -> Tensor:
    """``pool`` of a selection or of joined means, with each mean scaled to the mean norm of its tokens."""
    if a.joining is None and not a.selects:
        raise ValueError("pool_at_mean_norm supports selections and joined_means only. Use pool for other assignments.")
    _check_tokens(x, a.num_in + prefix, "pool_at_mean_norm", "input tokens")
    return _pick(x, a, prefix) if a.joining is None else _pick_and_join(x, a, a.joining, prefix, at_mean_norm=True)


def pool_size(size: Tensor, a: Assignment) -> Tensor:
    """How many patches each slot stands for, from ``size`` (B, N); a token splits its size equally over its edges."""
    if a.joining is not None and a.src is not None:
        return size.gather(1, a.src).scatter_add(1, a.joining.dst, size.gather(1, a.joining.src))
    if a.selects and a.src is not None:
        return size.gather(1, a.src)
    if a.src is None and a.present is None:  # every token has exactly one edge
        return size if a.dst is None else size.new_zeros(size.shape[0], a.num_out).scatter_add(1, a.dst, size)
    edges = a.edges(size.shape[0], size.device)
    part = size.gather(1, edges.src) * edge_shares(edges, a.num_in)
    return part.new_zeros(part.shape[0], a.num_out).scatter_add(1, edges.dst, part)


def unpool(y: Tensor, a: Assignment, fill: Tensor | None = None) -> Tensor:
    """Spread slots y (B, num_out, C) back to the input tokens: (B, num_in, C).

    A token gets the mean of the slots it has an edge to; a token without an edge (dropped) gets its row of
    ``fill`` (B, num_in, C), or zeros.
    """
    _check_tokens(y, a.num_out, "unpool", "output slots")
    if a.src is None and a.present is None:  # every token has exactly one edge
        return y if a.dst is None else take(y, a.dst)
    edges = a.edges(y.shape[0], y.device)
    rows = take(y, edges.dst) * edge_shares(edges, a.num_in).unsqueeze(-1)
    spread = add_into_slots(rows, edges.src, a.num_in).to(y.dtype)
    if fill is None:
        return spread
    return torch.where(_out_degree(edges, a.num_in).unsqueeze(-1) > 0, spread, fill)


def compose(first: Assignment, then: Assignment, batch: int, device: torch.device | None = None) -> Assignment:
    """One assignment equal to applying ``first``, then ``then``. Slow; meant for traces."""
    if first.num_out != then.num_in:
        raise ValueError(f"compose: the first ends in {first.num_out} slots, the second starts at {then.num_in}.")
    one = first.edges(batch, device)
    two = then.edges(batch, one.src.device)
    if not two.src.shape[1]:  # nothing is kept
        return Assignment(two.src, two.dst, two.weight, first.num_in, then.num_out)
    table = _edges_by_source(two, then.num_in)  # (B, M, D) edge of `then`, or -1
    next_edge = take(table, one.dst).flatten(1)  # (B, E1 * D)
    index = next_edge.clamp(min=0)
    src, weight, present = (field.repeat_interleave(table.shape[-1], 1) for field in (one.src, one.weight, one.present))
    return Assignment(
        src,
        two.dst.gather(1, index),
        weight * two.weight.gather(1, index),
        first.num_in,
        then.num_out,
        present=present & (next_edge >= 0),
    )


def slot_weights(a: Assignment, batch: int, device: torch.device | None = None) -> Tensor:
    """Sum of the weights that reach each slot, (B, num_out): 1 everywhere if slots are means."""
    edges = a.edges(batch, device)
    return add_into_slots(edges.weight.unsqueeze(-1), edges.dst, a.num_out).squeeze(-1)


def _with_joining(edges: Edges, more: Joining) -> Edges:
    """The edges of a selection, then those of the tokens that join it."""
    left = (
        edges.weight.to(more.weight).scatter_add(1, more.dst, -more.weight).clamp_min(0)
    )  # rounding may go below zero
    present = torch.ones(more.src.shape, dtype=torch.bool, device=more.src.device)
    pairs = zip(edges._replace(weight=left), (*more, present), strict=True)
    return Edges(*(torch.cat(pair, dim=1) for pair in pairs))


def _pick(x: Tensor, a: Assignment, prefix: int) -> Tensor:
    """Prefix and selected tokens by one index_select."""
    assert a.src is not None
    b, n, c = x.shape
    index = flat_index(a.src, n, prefix)
    if prefix:
        index = torch.cat([flat_index(_range(prefix, b, x.device), n), index], dim=1)
    return x.reshape(b * n, c).index_select(0, index.view(-1)).view(b, prefix + a.num_out, c)


def _pick_and_join(x: Tensor, a: Assignment, more: Joining, prefix: int, at_mean_norm: bool = False) -> Tensor:
    """y_j = x_first + sum over joining e of w_e (x_e - x_first): the mean, at the cost of the few that join."""
    b, n, c = x.shape
    y = _pick(x, a, prefix)
    if exporting():
        return _join_by_product(y, take(x, more.src + prefix), more, prefix, at_mean_norm)
    rows = y.view(-1, c)
    slot = flat_index(more.dst, prefix + a.num_out, prefix).view(-1)
    own = rows.index_select(0, slot)
    others = x.reshape(b * n, c).index_select(0, flat_index(more.src, n, prefix).view(-1))
    weight = more.weight.reshape(-1, 1)
    rows.index_add_(0, slot, ((others - own) * weight).to(x.dtype))
    if not at_mean_norm:
        return y
    factor = stretch(y[:, prefix:], _mean_norms(x[:, prefix:], a.src, more))  # 1 where nobody joined
    return (y * torch.nn.functional.pad(factor, (0, 0, prefix, 0), value=1.0)).to(x.dtype)


def _mean_norms(x: Tensor, first: Tensor | None, more: Joining) -> Tensor:
    """The mean norm of the tokens x (B, N, C) that each slot holds, (B, K, 1); of a single one exactly its norm."""
    assert first is not None
    norm = lengths(x, keepdim=False)
    own = norm.gather(1, first)
    gained = (norm.gather(1, more.src) - own.gather(1, more.dst)) * more.weight
    return own.scatter_add(1, more.dst, gained.to(own.dtype)).unsqueeze(2)


def _join_by_product(first: Tensor, others: Tensor, more: Joining, prefix: int, at_mean_norm: bool) -> Tensor:
    """The same without ``index_add``: a matrix product adds the tokens that join to the ``first`` (B, P + K, C)."""
    share = membership(more.dst + prefix, first.shape[1]).to(first.dtype) * more.weight.to(first.dtype).unsqueeze(1)
    left = 1 - share.sum(dim=2, keepdim=True)
    mean = left * first + share @ others
    if not at_mean_norm:
        return mean
    wanted = left * lengths(first) + share @ lengths(others)
    return mean * stretch(mean, wanted).to(mean.dtype)


def stretch(mean: Tensor, wanted: Tensor) -> Tensor:
    """The factor that gives ``mean`` the norm ``wanted``."""
    # tokens that cancel out leave a tiny mean of arbitrary direction: stretch it at most a thousandfold
    return wanted / torch.maximum(lengths(mean), wanted * 1e-3).clamp_min(torch.finfo(wanted.dtype).tiny)


def _sum_or_max(x: Tensor, a: Assignment, reduce: Reduce) -> Tensor:
    if a.joining is not None or a.present is not None:
        src, dst, weight, present = a.edges(x.shape[0])  # padding has weight zero
        a = Assignment(src, dst, weight, a.num_in, a.num_out, present=present)
    rows = x if a.src is None else take(x, a.src)
    if reduce == "max":
        return _max_into_slots(rows, a).to(x.dtype)
    if a.weight is not None:
        rows = rows * a.weight.unsqueeze(-1)  # float32 weights promote half precision, so sums stay precise
    elif a.dst is not None and rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    if a.dst is not None:
        rows = add_into_slots(rows, a.dst, a.num_out)
    return rows.to(x.dtype)


def _check_tokens(x: Tensor, expected: int, verb: str, what: str) -> None:
    if x.dim() != 3 or x.shape[1] != expected:
        raise ValueError(f"{verb}: the assignment has {expected} {what}, got a tensor of shape {tuple(x.shape)}.")


def _range(k: int, batch: int, device: torch.device | None) -> Tensor:
    return torch.arange(k, device=device).expand(batch, k)


def _max_into_slots(rows: Tensor, a: Assignment) -> Tensor:
    if a.present is not None:
        rows = rows.masked_fill(~a.present.unsqueeze(-1), -torch.inf)
    return rows if a.dst is None else max_rows_into_slots(rows, a.dst, a.num_out)


def _out_degree(edges: Edges, num_in: int) -> Tensor:
    """(B, num_in) number of edges that leave each token."""
    return add_into_slots(edges.present.float().unsqueeze(-1), edges.src, num_in).squeeze(-1)


def edge_shares(edges: Edges, num_in: int) -> Tensor:
    """(B, E): one over the number of edges that leave the edge's token; zero for padding."""
    degree = take(_out_degree(edges, num_in).unsqueeze(-1), edges.src).squeeze(-1)
    return edges.present / degree.clamp(min=1)


def _edges_by_source(edges: Edges, num_in: int) -> Tensor:
    """(B, num_in, D) indices of the edges that leave each token, -1 if it has fewer than D."""
    b, e = edges.src.shape
    key = torch.where(edges.present, edges.src, num_in)  # padding sorts after all tokens
    sorted_src, order = key.sort(dim=1, stable=True)
    place = torch.arange(e, device=key.device) - torch.searchsorted(sorted_src, sorted_src)
    real = sorted_src < num_in
    degree = int((place * real).amax()) + 1 if e else 1
    table = key.new_full((b, (num_in + 1) * degree), -1)
    table.scatter_(1, sorted_src * degree + place * real, torch.where(real, order, -1))
    return table.view(b, num_in + 1, degree)[:, :num_in]


def _prepend_range(index: Tensor | None, prefix: int) -> Tensor | None:
    if index is None:
        return None
    return torch.cat([_range(prefix, index.shape[0], index.device), index + prefix], dim=1)
