"""Methods as data: every registered one survives the trip to text and to JSON, and mistakes are named."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import json
import pickle
import textwrap
import typing
from enum import Enum

import pytest

import foveate as fv
from foveate.core import keep_topk
from foveate.methods import (
    ClusterAttention,
    EViT,
    FreeSlice,
    HVTPool,
    Method,
    RandomSelect,
    Site,
    StridedConv,
    TokenPooling,
    ToMe,
    Ward,
    all_methods,
)
from foveate.methods.options import build, describe, method_text, parse
from foveate.methods.registry import register, unregister


@dataclasses.dataclass(frozen=True)
class Choosy(Method):
    """Has the kinds of options that few methods have; registered by one test only."""

    taste: typing.Literal["sweet", "sour"] = "sweet"
    amount: float = 1.0
    word: str = ""

    site: typing.ClassVar[Site] = Site.PRE_BLOCK
    kind: typing.ClassVar[str] = "select"

    def assign(self, view, keep):
        return keep_topk(view.patches[..., 0], keep)


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
    assert parse(" evit : fuse = no , normalize = ON ") == EViT(fuse=False, normalize=True)
    assert parse("evit:fuse=0,normalize=1") == EViT(fuse=False, normalize=True)
    assert parse("random:seed=7") == RandomSelect(seed=7)
    assert parse("free-slice:site=kv") == FreeSlice(site=Site.KV)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "evitt",
            r"There is no method 'evitt'\. Did you mean EViT.*\? Known: ATC, .*EViT, .*Ward",
        ),
        ("", r"no method ''\. Known: "),
        ("evit:fused=true", "EViT has no option 'fused'. Its options: fuse, normalize, proportional_attention"),
        ("topk:seed=1", "TopK has no option 'seed'. It has no options"),
        ("evit:fuse=perhaps", "EViT.fuse must be true or false; got 'perhaps'"),
        ("random:seed=many", "RandomSelect.seed must be a whole number; got 'many'"),
        ("random:seed=1.5", "RandomSelect.seed must be a whole number; got '1.5'"),
        ("free-slice:site=attic", "FreeSlice.site must be one of .*post_attn.*; got 'attic'"),
        ("evit:fuse", "as name=value; got 'fuse' in 'evit:fuse'"),
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


@pytest.fixture
def choosy():
    register(Choosy)
    yield
    unregister(Choosy)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"taste": "bitter"}, "taste must be one of sweet, sour; got 'bitter'"),
        ({"amount": "much"}, "amount must be a finite number; got 'much'"),
        ({"amount": "nan"}, "amount must be a finite number; got nan"),
        ({"amount": float("inf")}, "amount must be a finite number; got inf"),
        ({"amount": True}, "amount must be a finite number; got True"),
        ({"amount": None}, "amount must be a finite number; got None"),
        ({"word": 3}, "word must be text; got 3"),
    ],
)
def test_options_that_are_words_numbers_or_text_are_checked_in_data_and_in_python(choosy, options, words):
    with pytest.raises(ValueError, match=words):
        build("choosy", options)
    with pytest.raises(ValueError, match=f"Choosy.{words.partition(' ')[0]}"):
        Choosy(**options)


def test_options_that_are_words_numbers_or_text_are_read(choosy):
    assert parse("choosy:taste=sour,amount=2.5,word=x") == Choosy("sour", 2.5, "x")
    assert isinstance(Choosy(amount=2).amount, float)


@pytest.mark.parametrize("blocks", [(1, 2), [1, 2]])
def test_whole_numbers_may_be_a_list(blocks):
    assert ClusterAttention(ratio=2, blocks=blocks).blocks == (1, 2)
    assert hash(StridedConv(blocks)) == hash(StridedConv((1, 2)))


def test_a_single_whole_number_stands_for_a_list_of_one():
    assert StridedConv(3).blocks == (3,)
    assert build("StridedConv", {"blocks": 3}) == parse("strided-conv:blocks=3") == StridedConv((3,))


@pytest.mark.parametrize("blocks", ["36", 2.0, True, None, (1, True), [0.5]])
def test_anything_else_is_not_a_list_of_whole_numbers(blocks):
    with pytest.raises(ValueError, match=r"StridedConv\.blocks must be one or more whole numbers; got"):
        StridedConv(blocks)


def test_a_site_may_be_given_by_its_value():
    assert FreeSlice(site="kv") == FreeSlice(site=Site.KV)


@pytest.mark.parametrize("text", ["EViT:carry=true", "evit:proportional_attention=yes"])
def test_an_option_is_also_read_by_the_name_it_had_before(text):
    assert parse(text) == EViT(proportional_attention=True)
    assert method_text(parse(text)) == "EViT:proportional_attention=true"


def test_files_of_earlier_versions_are_still_read():
    assert build("evit", {"fuse": False, "normalize": False, "carry": True}) == EViT(False, False, True)
    assert build("tome", {"carry": False}) == ToMe(proportional_attention=False)
    assert build("token-pooling", {"output": "medoid", "carry": False}) == TokenPooling(
        output="medoid", proportional_attention=False
    )
    assert build("random", {"seed": 3}) == RandomSelect(3)
    assert build("hvt", {"stages": 2, "pool": "max", "pool_dim": 1}) == HVTPool(2)
    assert build("free-slice", {"site": "kv"}) == FreeSlice(Site.KV)


def test_an_option_under_both_its_names_is_refused():
    with pytest.raises(ValueError, match=r"EViT\.proportional_attention is given twice; 'carry' is its old name"):
        parse("evit:proportional_attention=true,carry=false")
    with pytest.raises(ValueError, match="TopK has no option 'carry'"):
        parse("topk:carry=true")


@pytest.mark.parametrize(
    ("cls", "option", "value", "words"),
    [
        (ToMe, "r", 13, r"ToMe has no option 'r'\. .* fv\.reduce_\(model, fv\.ToMe\(\), fv\.RemovePerBlock\(13\)\)\."),
        (EViT, "keep_rate", 0.7, r"EViT has no option 'keep_rate'\. .* fv\.EViT\(\), fv\.KeepRate\(0\.7\)\)\."),
        (Ward, "ratio", 0.5, r"fv\.Ward\(\), fv\.KeepRate\(0\.5\)\)"),
        (fv.DynamicViT, "rate", 0.5, r"fv\.DynamicViT\(\), fv\.KeepRate\(0\.5\)\)"),
    ],
)
def test_a_schedule_given_to_a_method_gets_the_form_to_use(cls, option, value, words):
    with pytest.raises(TypeError, match=words):
        cls(**{option: value})
    with pytest.raises(ValueError, match=words):
        parse(f"{cls.__name__}:{option}={value}")


def test_other_unknown_options_stay_the_error_of_a_dataclass():
    with pytest.raises(TypeError, match="unexpected keyword argument 'fused'"):
        EViT(fused=True)
    assert ClusterAttention(ratio=4).ratio == 4, "an option of that name is no mistake"


@pytest.mark.parametrize("method", variants(), ids=repr)
def test_a_method_survives_copies_and_pickling(method):
    for again in (copy.deepcopy(method), pickle.loads(pickle.dumps(method)), dataclasses.replace(method)):
        assert again == method


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
        (
            lambda: TokenPooling(weights="significnce"),
            "TokenPooling.weights must be one of significance, size, none; got",
        ),
        (
            lambda: TokenPooling(clustering="k-means"),
            "clustering must be one of kmedoids, kmeans; got 'k-means'",
        ),
        (lambda: TokenPooling(iterations=2.5), "TokenPooling.iterations must be a whole number; got 2.5"),
        (lambda: Ward(search="gredy"), "Ward.search must be one of rounds, greedy; got 'gredy'"),
        (lambda: EViT(fuse="no"), "EViT.fuse must be true or false; got 'no'"),
        (lambda: RandomSelect(seed=True), "RandomSelect.seed must be a whole number; got True"),
        (lambda: HVTPool(pool_dim=True), "HVTPool.pool_dim must be one of 1, 2; got True"),
        (
            lambda: ClusterAttention(sharpness=float("nan")),
            "ClusterAttention.sharpness must be a finite number; got nan",
        ),
    ],
)
def test_a_misspelt_option_is_refused_in_python_too(build_it, match):
    with pytest.raises(ValueError, match=match):
        build_it()
