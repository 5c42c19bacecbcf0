"""``fv.check_method``: what it finds in methods that break a law, one method for each."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import foveate as fv
from foveate.checks import LAWS, BrokenMethod, check_method
from foveate.core import keep_topk, selection
from foveate.methods import Site, all_methods, register
from foveate.methods.registry import unregister


@dataclass(frozen=True)
class Loudest(fv.Method):
    """Keep the tokens with the largest norm: a method that keeps every law."""

    power: float = 2.0
    """Exponent of the norm."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[str] = "select"

    def assign(self, view, keep):
        return keep_topk(view.patches.norm(p=self.power, dim=-1), keep)


class OneTooMany(Loudest):
    def assign(self, view, keep):
        return super().assign(view, min(keep + 1, view.patches.shape[1]))


class ChangesPrefix(Loudest):
    def combine(self, view, assignment):
        return super().combine(view, assignment) * 1.01


class LooksAtTheBatch(Loudest):
    def assign(self, view, keep):
        loudness = view.patches.norm(dim=-1)
        return keep_topk((loudness - loudness.mean(dim=0)).abs(), keep)


class Dice(Loudest):
    def assign(self, view, keep):
        return keep_topk(torch.rand(view.patches.shape[:2]), keep)


class HidesWork(Loudest):
    def assign(self, view, keep):
        return keep_topk((view.patches @ view.patches.transpose(1, 2)).sum(dim=-1), keep)


class Backward(Loudest):
    def spread(self, strength, depth, n):
        return super().spread(1 - strength, depth, n)


class NotRegistered(Loudest):
    pass


class NoGradient(Loudest):
    def combine(self, view, assignment):
        out = super().combine(view, assignment)
        return out + 0 * (out - out.detach()).square().sum().sqrt()  # the root's slope at zero is infinite


class Remembers(Loudest):
    def assign(self, view, keep):
        calls = getattr(self, "calls", 0)
        object.__setattr__(self, "calls", calls + 1)
        index = (torch.arange(keep) + calls) % view.patches.shape[1]
        return selection(index.sort().values.expand(view.tokens.shape[0], keep), view.patches.shape[1])


class NeedsTooEarly(Loudest):
    site: ClassVar[Site] = Site.PRE_BLOCK

    def needs(self, has_cls):
        return frozenset({"keys"})


BROKEN = {
    OneTooMany: "got keep=39 in block 1 and returned 40",
    ChangesPrefix: "prefix tokens are untouched",
    LooksAtTheBatch: "does not depend on its batch",
    Dice: "results are repeatable",
    HidesWork: "costs are exact",
    Backward: "budgets can be met",
    NotRegistered: "written forms read back",
    NoGradient: "gradients are finite",
    Remembers: "results are repeatable",
    NeedsTooEarly: "scores it needs exist at its site",
}


@pytest.mark.parametrize("name", all_methods())
def test_every_registered_method_keeps_every_law(name):
    check_method(all_methods()[name])


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_law_is_named(broken):
    with pytest.raises(BrokenMethod, match=BROKEN[broken]):
        check_method(broken)


def test_a_method_of_another_package_passes_once_it_is_registered():
    with pytest.raises(BrokenMethod, match=r"breaks 2 laws:\n- written forms read back"):
        check_method(Loudest)
    register(Loudest)
    try:
        check_method(Loudest)
        check_method(Loudest(power=3.0))
    finally:
        unregister(Loudest)


def test_what_is_no_method_is_refused():
    with pytest.raises(TypeError, match="takes a Method class or instance; got 3"):
        check_method(3)


def test_every_law_is_a_sentence_with_a_check():
    assert len(LAWS) >= 10
    assert all(callable(check) for check in LAWS.values())
