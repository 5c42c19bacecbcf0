"""One value for how a model is reduced: equal however it is written, and refused with words where it is wrong."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate as fv
from zoo import defaults, images, main_output, make, variants

SCHEDULES = [
    None,
    fv.Budget(0.5),
    fv.Budget(0.123456789, blocks=(1, 2)),
    fv.KeepRate(0.7),
    fv.KeepRate(0.3, blocks=(1, 3)),
    fv.RemovePerBlock(13),
    fv.Keep([36, 20, 20, 9]),
    fv.Keep({1: 20, 3: 9}),
]
reductions = st.builds(
    fv.Reduction,
    st.sampled_from([*defaults(), *variants()]),
    st.sampled_from(SCHEDULES),
    st.booleans(),
    st.sampled_from([None, "fixed", "learned"]),
    st.sampled_from([None, "tokens"]),
    st.sampled_from([None, (0, 2), (3, 3)]),
    st.sampled_from(["representative", "mean"]),
)
grids = st.builds(
    fv.Reduction,
    st.just(fv.ToMe()),
    st.sampled_from(SCHEDULES),
    output=st.sampled_from(["grid", "grid-residual", "grid-attention"]),
)
reductions = reductions | grids


@given(reductions)
@settings(max_examples=200, deadline=None)
def test_every_written_form_reads_back_as_the_same_value(reduction):
    assert fv.Reduction.from_dict(json.loads(json.dumps(reduction.to_dict()))) == reduction
    assert fv.Reduction.parse(reduction.text) == reduction
    assert hash(reduction) == hash(fv.Reduction.parse(reduction.text))


@given(reductions)
@settings(max_examples=60, deadline=None)
def test_the_lines_of_python_name_the_same_value(reduction):
    taken = []

    class Recorder:
        """foveate, but for the verb."""

        def __getattr__(self, name):
            return getattr(fv, name)

        def reduce_(self, model, method, schedule=None, **options):
            taken.append(fv.Reduction(method, schedule, **options))

    lines = reduction.code().replace("import foveate as fv\n", "")
    exec(lines, {"fv": Recorder(), "model": None})
    assert taken == [reduction]


def test_the_identity_is_a_value_and_touches_nothing():
    identity, model = fv.Reduction(), make("timm-cls")
    assert identity.is_identity
    assert identity == fv.Reduction.parse("") == fv.Reduction.from_dict(None) == fv.inspect(model).reduction
    assert identity.apply_(model) is model
    assert not fv.is_reduced(model)
    assert identity.code() == identity.text == ""
    assert str(identity) == "unreduced"


def test_the_exact_last_block_and_unit_attention_need_no_method():
    model, x = make("timm-cls"), images(2)
    with torch.no_grad():
        expected = main_output(model, x)
        fv.Reduction(exact_last_block=True).apply_(model)
        torch.testing.assert_close(main_output(model, x), expected, rtol=1e-4, atol=1e-5)
        assert fv.cost(model).tokens[-1] == 1
        fv.restore_(model)
        fv.Reduction(unit_qk="fixed").apply_(model)
        assert not torch.allclose(main_output(model, x), expected)
    code = fv.Reduction(exact_last_block=True).code()
    assert code.splitlines()[-1] == "fv.Reduction(exact_last_block=True).apply_(model)"


def test_short_forms_stand_for_the_long_ones():
    long = fv.Reduction(fv.EViT(fuse=False), fv.Budget(0.5))
    assert fv.Reduction("evit:fuse=false", 0.5) == long
    assert fv.Reduction("EViT:fuse=no", "50%") == long
    model = fv.reduce_(make("timm-cls"), "evit:fuse=false", 0.6)
    assert fv.inspect(model).reduction == fv.Reduction(fv.EViT(fuse=False), fv.Budget(0.6))


def test_reduced_restores_also_after_an_exception():
    model = make("timm-cls")

    def fail():
        with fv.reduced(model, "tome", 0.7) as same:
            assert same is model
            assert fv.is_reduced(model)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not fv.is_reduced(model)
    with fv.reduced(model, fv.Reduction("topk", 0.7)):
        assert fv.is_reduced(model)
    assert not fv.is_reduced(model)
    with fv.reduced(model, "tome", 0.7):
        fv.restore_(model)  # by hand: nothing is left to do at the end


def test_methods_of_other_packages_are_imported_in_the_lines():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Elsewhere(fv.TopK):
        """A method of another module."""

    lines = fv.Reduction(Elsewhere(), fv.Budget(0.5)).code().splitlines()
    assert lines[0] == "import foveate as fv"
    assert lines[1].startswith(f"from {__name__} import ")
    assert lines[2].endswith("Elsewhere(), fv.Budget(0.5))")


GOOD = fv.Reduction("tome", 0.5).to_dict()
WRONG_FILES = {
    "stored in version 3": GOOD | {"version": 3},
    "stored in version 'x'": GOOD | {"version": "x"},
    "unknown keys: colour, mood": GOOD | {"mood": 1, "colour": 2},
    "no method 'Newest'": GOOD | {"method": {"name": "Newest", "options": {}}},
    "has no option 'speed'": GOOD | {"method": {"name": "ToMe", "options": {"speed": 2}}},
    "needs exactly a name and options": GOOD | {"method": "ToMe"},
    "no schedule 'weekly'": GOOD | {"schedule": {"kind": "weekly"}},
    "wrong or missing keys": GOOD | {"schedule": {"kind": "budget", "share": 1}},
    "stored schedule must be a mapping": GOOD | {"schedule": 3},
    "stored reduction must be a mapping": [1, 2],
    "True or False": GOOD | {"exact_last_block": "no"},
    "unit_qk must be": GOOD | {"unit_qk": "both"},
}


@pytest.mark.parametrize("words", WRONG_FILES)
def test_a_stored_reduction_that_is_wrong_is_refused_by_name(words):
    with pytest.raises((ValueError, TypeError), match=words):
        fv.Reduction.from_dict(WRONG_FILES[words])


WRONG_TEXTS = {
    "no method 'nonsense'": "nonsense --budget 0.5",
    "Cannot read '--bugdet'": "tome --bugdet 0.5",
    "Cannot read '--budget'": "tome --budget",
    "several schedules": "tome --budget 0.5 --remove 3",
    "needs a keep rate or a budget": "tome --remove 3 --blocks 1,2",
    "needs a method": "--budget 0.5",
    "write a share as 0.5 or 50%": "tome --budget half",
    "For 70 % write 0.7": "tome --budget 70",
}


@pytest.mark.parametrize("words", WRONG_TEXTS)
def test_a_text_that_is_wrong_is_refused_with_the_way_out(words):
    with pytest.raises(ValueError, match=words):
        fv.Reduction.parse(WRONG_TEXTS[words])


def test_swapped_and_unfinished_arguments_are_refused():
    with pytest.raises(TypeError, match="method must be an instance"):
        fv.Reduction(fv.Budget(0.5), fv.ToMe())
    with pytest.raises(TypeError, match="method must be an instance"):
        fv.Reduction(fv.ToMe, fv.Budget(0.5))
    with pytest.raises(TypeError, match="schedule must be a Keep"):
        fv.Reduction(fv.ToMe(), fv.Budget)
    with pytest.raises(TypeError, match="exact_last_block must be True or False, got 'no'"):
        fv.Reduction(fv.ToMe(), fv.Budget(0.5), exact_last_block="no")
