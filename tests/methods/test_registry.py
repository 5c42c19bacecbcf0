"""One name per method, matched loosely; methods of other packages come by entry points."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import textwrap
import warnings

import pytest

from foveate.core import keep_topk
from foveate.methods import EViT, HVTPool, ImportanceSelect, Method, RandomSelect, Site, TokenPooling, registry
from foveate.methods.base import Kind
from foveate.methods.registry import all_methods, is_method, list_methods, method_class, register, unregister


def make_class(name: str = "Odd", bases: tuple = (Method,), dataclass: bool = True, **attributes) -> type[Method]:
    body = {
        "site": Site.PRE_BLOCK,
        "kind": "select",
        "assign": lambda self, view, keep: keep_topk(view.patches[..., 0], keep),
    }
    cls = type(name, bases, body | attributes)
    return dataclasses.dataclass(frozen=True)(cls) if dataclass else cls


@pytest.mark.parametrize("text", ["token-pooling", "TokenPooling", "tokenpooling", "token_pooling", " TOKEN-POOLING "])
def test_case_hyphens_and_underscores_do_not_matter(text):
    assert method_class(text) is TokenPooling
    assert is_method(text)


@pytest.mark.parametrize(("old", "cls"), [("hvt", HVTPool), ("random", RandomSelect), ("importance", ImportanceSelect)])
def test_names_of_earlier_versions_are_still_read(old, cls):
    assert method_class(old) is cls


def test_a_method_has_the_name_of_its_class():
    assert all(cls.name == cls.__name__ == name for name, cls in all_methods().items())
    assert EViT().name == "EViT"


def test_an_unknown_name_gets_close_ones_and_the_list():
    with pytest.raises(ValueError, match=r"no method 'tomee'\. Did you mean ToMe.* Known: .*EViT.*ToMe.*Ward\."):
        method_class("tomee")
    with pytest.raises(ValueError, match=r"no method 'xqzw'\. Known: "):
        method_class("xqzw")
    assert not is_method("tomee")


def test_names_can_be_filtered():
    assert set(list_methods()) == set(all_methods())
    assert list_methods() == sorted(list_methods(), key=str.lower)
    assert list_methods("*pool*") == ["HVTPool", "TokenPooling"]
    assert list_methods("token-*") == ["TokenPooling"]
    assert list_methods("tome") == ["ToMe"]
    assert list_methods("nothing*") == []
    assert list_methods(kind="pool") == ["DCT", "HVTPool", "StridedConv"]
    assert list_methods("h*", kind="pool") == ["HVTPool"]
    with pytest.raises(ValueError, match=r"kind must be one of select, .*; got 'pooling'"):
        list_methods(kind="pooling")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: make_class("EVIT"), ValueError, "The name 'EVIT' is taken by foveate.methods.evit.EViT"),
        (lambda: make_class("Hvt"), ValueError, "The name 'Hvt' is taken by HVTPool"),
        (lambda: make_class(dataclass=False), TypeError, "Odd is not a dataclass"),
        (
            lambda: make_class(kind="odd"),
            ValueError,
            "Odd.kind must be one of select, merge, cluster, pool, learned; got 'odd'",
        ),
        (lambda: make_class(site="kv"), ValueError, "Odd.site must be a foveate.methods.Site, got 'kv'"),
        (lambda: make_class(assign=Method.assign), TypeError, "a Method class that implements assign"),
        (lambda: make_class(needs=lambda self, has_cls: {"keys"}), ValueError, "needs scores from attention"),
        (lambda: make_class(__annotations__={"kind": str}), ValueError, "Odd has an option 'kind'"),
        (lambda: make_class(__annotations__={"baseline": bool}), ValueError, "Odd has an option 'baseline'"),
        (lambda: make_class(__annotations__={"strength": int}), ValueError, "Odd.strength has no default"),
        (lambda: int, TypeError, "register takes a Method class"),
    ],
)
def test_a_class_that_cannot_work_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        register(make())
    assert "Odd" not in all_methods()


def test_a_class_that_is_defined_again_replaces_itself():
    first, again = make_class("Twice"), make_class("Twice")
    try:
        assert register(register(first)) is first
        assert register(again) is again
        assert method_class("twice") is again
    finally:
        unregister(again)
    assert not is_method("twice")


PLUGIN = """
    from dataclasses import dataclass
    from typing import ClassVar
    from foveate.core import keep_topk
    from foveate.methods import Method, Site, register

    @dataclass(frozen=True)
    class Plain(Method):
        "Keep the tokens of largest first channel."
        site: ClassVar[Site] = Site.PRE_BLOCK
        kind: ClassVar[str] = "select"
        def assign(self, view, keep):
            return keep_topk(view.patches[..., 0], keep)

    @register
    @dataclass(frozen=True)
    class Registered(Plain):
        "Registers itself."
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with entry points on the path, and takes all traces of it away again."""
    before, modules = dict(registry._METHODS), set(sys.modules)

    def run(entry_points: str, module: str = "foveate_plugin") -> None:
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(PLUGIN))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foveate-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[foveate.methods]\n{entry_points}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        registry._READ_GROUPS.clear()

    yield run
    registry._METHODS.clear()
    registry._METHODS.update(before)
    for name in set(sys.modules) - modules:
        if name.startswith("foveate_plugin"):
            del sys.modules[name]


@pytest.mark.parametrize("entry", ["a = foveate_plugin:Plain", "a = foveate_plugin"])
def test_methods_of_an_installed_package_are_found(install, entry):
    install(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = list_methods()
    assert "Registered" in names
    assert ("Plain" in names) == entry.endswith("Plain")
    assert method_class("registered").__module__ == "foveate_plugin"


def test_a_look_up_of_an_unknown_name_finds_them_too(install):
    install("a = foveate_plugin:Plain")
    assert method_class("evit") is EViT
    assert "foveate_plugin" not in sys.modules, "they are loaded when they are first needed"
    assert method_class("plain").name == "Plain"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("a = foveate_plugin:Missing", "AttributeError"),
        ("a = foveate_plugin_absent:Plain", "ModuleNotFoundError"),
        ("a = foveate_plugin:keep_topk", "TypeError: register takes a Method class"),
    ],
)
def test_a_broken_package_is_named_in_a_warning_and_breaks_nothing(install, entry, words):
    install(entry)
    with pytest.warns(RuntimeWarning, match=f"The methods of foveate-plugin are not available: .*{words}"):
        assert "EViT" in list_methods()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert "EViT" in list_methods()


def test_kind_is_one_of_the_literal():
    assert {cls.kind for cls in all_methods().values()} <= set(Kind.__args__)
