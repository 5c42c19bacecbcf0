"""Methods as data: every registered one survives the trip to text and to JSON, and mistakes are named."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import typing
from enum import Enum

import pytest

from foveate.methods import EViT, FreeSlice, Method, RandomSelect, Site, TokenPooling, Ward, all_methods
from foveate.methods.base import register
from foveate.methods.options import build, describe, parse


@dataclasses.dataclass(frozen=True)
class Choosy(Method):
    """Not registered: has the kinds of options that few methods have."""

    taste: typing.Literal["sweet", "sour"] = "sweet"
    amount: float = 1.0
    word: str = ""

    def assign(self, view, keep):
        raise NotImplementedError


def other_values(kind: object, default: object) -> list[object]:
    """Values of a field that differ from its default."""
    if typing.get_origin(kind) is typing.Literal:
        return [value for value in typing.get_args(kind) if value != default]
    if kind is bool:
        return [not default]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [value for value in kind if value is not default]
    if kind == tuple[int, ...]:
        return [(1,), (0, 3)]
    return [default + 1, default + 2] if kind in (int, float) else []


def variants() -> list[Method]:
    """Every registered method: as it is, and with each of its options changed."""
    found = []
    for cls in all_methods().values():
        found.append(cls())
        types = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            for value in other_values(types[field.name], field.default):
                try:
                    found.append(dataclasses.replace(cls(), **{field.name: value}))
                except ValueError:  # a value the method itself refuses
                    continue
    return found


@pytest.mark.parametrize("method", variants(), ids=repr)
def test_a_described_method_can_be_built_again_from_json(method):
    data = json.loads(json.dumps(describe(method)))
    again = build(data["name"], data["options"])
    assert again == method
    assert type(again) is type(method)


def as_text(value) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("method", variants(), ids=repr)
def test_a_method_can_be_written_as_one_line_of_text(method):
    data = describe(method)
    options = ",".join(f"{key}={as_text(value)}" for key, value in data["options"].items())
    assert parse(f"{data['name']}:{options}") == method


@pytest.mark.parametrize("name", all_methods())
def test_a_bare_name_means_the_defaults(name):
    assert parse(name) == build(name) == all_methods()[name]()


def test_text_takes_spaces_and_the_usual_words_for_yes_and_no():
    assert parse(" evit : fuse = no , carry = ON ") == EViT(fuse=False, carry=True)
    assert parse("evit:fuse=0,carry=1") == EViT(fuse=False, carry=True)
    assert parse("random:seed=7") == RandomSelect(seed=7)
    assert parse("free-slice:site=kv") == FreeSlice(site=Site.KV)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("evitt", "no method 'evitt'. Known: .*evit.*tome"),
        ("", "no method ''"),
        ("evit:fused=true", "EViT has no option 'fused'. Its options: fuse, normalize, carry"),
        ("topk:seed=1", "TopK has no option 'seed'. It has none"),
        ("evit:fuse=perhaps", "EViT.fuse takes true or false; got 'perhaps'"),
        ("random:seed=many", "RandomSelect.seed takes a whole number; got 'many'"),
        ("random:seed=1.5", "RandomSelect.seed takes a whole number; got '1.5'"),
        ("free-slice:site=attic", "FreeSlice.site takes .*post_attn.*; got 'attic'"),
        ("evit:fuse", "written name=value; got 'fuse' in 'evit:fuse'"),
    ],
)
def test_a_mistake_in_text_is_named(text, words):
    with pytest.raises(ValueError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("evit", {"fuse": 1}, "true or false; got 1"),
        ("evit", {"fuse": None}, "true or false; got None"),
        ("random", {"seed": True}, "whole number; got True"),
        ("random", {"seed": [1]}, r"whole number; got \[1\]"),
        ("random", {"seed": 3.7}, "whole number; got 3.7"),
    ],
)
def test_data_of_the_wrong_type_is_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        build(name, options)


def test_options_that_are_words_numbers_or_text_say_so(monkeypatch):
    monkeypatch.setattr("foveate.methods.options.all_methods", lambda: {"choosy": Choosy})
    assert parse("choosy:taste=sour,amount=2.5,word=x") == Choosy("sour", 2.5, "x")
    for options, words in (
        ({"taste": "bitter"}, "taste is one of sweet, sour; got 'bitter'"),
        ({"amount": "much"}, "amount takes a number; got 'much'"),
        ({"word": 3}, "word takes text; got 3"),
    ):
        with pytest.raises(ValueError, match=words):
            build("choosy", options)


def undocumented(cls: type) -> list[str]:
    """Fields in the body of ``cls`` that no docstring line follows."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    names = {field.name for field in dataclasses.fields(cls)}
    missing = []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or statement.target.id not in names:
            continue
        is_text = isinstance(following, ast.Expr) and isinstance(getattr(following.value, "value", None), str)
        if not is_text:
            missing.append(f"{cls.__name__}.{statement.target.id}")
    return missing


@pytest.mark.parametrize("name", all_methods())
def test_every_option_has_a_docstring_for_the_command_line(name):
    classes = [c for c in all_methods()[name].__mro__ if dataclasses.is_dataclass(c)]
    missing = [field for c in classes for field in undocumented(c)]
    assert not missing, f"no docstring line below {', '.join(missing)}"


def test_the_docstring_check_notices_a_bare_field():
    @dataclasses.dataclass(frozen=True)
    class Bare:
        told: int = 0
        """What it is."""
        untold: int = 0

    assert undocumented(Bare) == ["Bare.untold"]


@pytest.mark.parametrize("name", all_methods())
def test_every_method_says_what_it_does(name):
    cls = all_methods()[name]
    assert cls.name == name
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}("), "the docstring is the one dataclass makes up"


@pytest.mark.parametrize(
    ("build_it", "match"),
    [
        (lambda: TokenPooling(weights="significnce"), "TokenPooling.weights is one of significance, size, none; got"),
        (
            lambda: TokenPooling(clustering="k-means"),
            "clustering is one of kmedoids, kmeans; got 'k-means'",
        ),
        (lambda: TokenPooling(iterations=2.5), "TokenPooling.iterations is a whole number; got 2.5"),
        (lambda: Ward(search="gredy"), "Ward.search is one of rounds, greedy; got 'gredy'"),
        (lambda: EViT(fuse="no"), "EViT.fuse is true or false; got 'no'"),
        (lambda: RandomSelect(seed=True), "RandomSelect.seed is a whole number; got True"),
    ],
)
def test_a_misspelt_option_is_refused_in_python_too(build_it, match):
    with pytest.raises(ValueError, match=match):
        build_it()


@pytest.mark.parametrize("taken", ["label", "kind"])
def test_an_option_cannot_have_the_name_of_what_every_method_has(taken):
    options = {"__annotations__": {taken: str}, taken: "", "site": Site.PRE_BLOCK}
    odd = dataclasses.dataclass(frozen=True)(type("Odd", (Method,), options))
    with pytest.raises(ValueError, match=f"Odd has an option '{taken}', which every method has"):
        register("odd", "Odd", "select")(odd)
    assert "odd" not in all_methods()
