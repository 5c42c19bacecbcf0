"""The configuration of a run: from plain data and back, changed as on a command line, and refused when it is wrong."""

import dataclasses
import json
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.training.config import Options, TrainConfig, override, read_config

SECTIONS = {name: kind for name, kind in typing.get_type_hints(TrainConfig).items() if dataclasses.is_dataclass(kind)}
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
# a command line loses the blanks around a value, and no more
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12).map(str.strip)
VALUES: dict[object, st.SearchStrategy] = {
    str: WORDS,
    float: NUMBERS,
    tuple[float, ...]: st.lists(NUMBERS, max_size=3).map(tuple),
    Options: st.dictionaries(WORDS, st.booleans() | st.integers() | NUMBERS | WORDS | st.lists(NUMBERS), max_size=3),
    dict[str, int]: st.dictionaries(st.integers(0, 40).map(str), st.integers(0, 400), max_size=3),
}


def section_values(kind):
    """Any values for all fields of a section."""
    hints = typing.get_type_hints(kind)
    return st.fixed_dictionaries(
        {name: VALUES[hint] if hint in VALUES else st.from_type(hint) for name, hint in hints.items()}
    )


@st.composite
def configurations(draw):
    parts = {name: kind(**draw(section_values(kind))) for name, kind in SECTIONS.items()}
    return TrainConfig(draw(WORDS), draw(WORDS), **parts)


@given(configurations())
@settings(max_examples=40, deadline=None)
def test_plain_data_and_back(config):
    assert read_config(config.as_dict()) == config
    assert read_config(json.loads(json.dumps(config.as_dict()))) == config


@given(configurations())
@settings(max_examples=40, deadline=None)
def test_every_value_can_be_written_on_a_command_line(config):
    changes = []
    for section in SECTIONS:
        for name, value in config.as_dict()[section].items():
            changes.append(f"{section}.{name}={value if isinstance(value, str) else json.dumps(value)}")
    changed = override(TrainConfig(config.source, config.description), changes)
    assert changed == config


def test_what_is_not_said_has_its_default():
    assert read_config({}) == TrainConfig()
    config = read_config({"optimizer": {"lr": 1}})
    assert config.optimizer == dataclasses.replace(TrainConfig().optimizer, lr=1.0)
    assert isinstance(config.optimizer.lr, float)


@pytest.mark.parametrize(
    ("change", "section", "name", "value"),
    [
        ("optimizer.lr=1e-3", "optimizer", "lr", 1e-3),
        ("optimizer.lr=1", "optimizer", "lr", 1.0),
        (" optimizer.lr = 0.5 ", "optimizer", "lr", 0.5),
        ("optimizer.lr=.5", "optimizer", "lr", 0.5),
        ("optimizer.lr=1.", "optimizer", "lr", 1.0),
        ("augmentation.scale=.2,1.", "augmentation", "scale", (0.2, 1.0)),
        ("schedule.epochs=7", "schedule", "epochs", 7),
        ("model.pretrained=true", "model", "pretrained", True),
        ("model.pretrained=False", "model", "pretrained", False),
        ("model.name=hf:some/model", "model", "name", "hf:some/model"),
        ("model.name=7", "model", "name", "7"),
        ("model.name = test_vit ", "model", "name", "test_vit"),
        ("data.source=a=b", "data", "source", "a=b"),
        ("data.val=", "data", "val", ""),
        ("reduction.blocks=3,6,9", "reduction", "blocks", (3, 6, 9)),
        ("reduction.blocks=[3, 6]", "reduction", "blocks", (3, 6)),
        ("reduction.blocks=3", "reduction", "blocks", (3,)),
        ("reduction.blocks=", "reduction", "blocks", ()),
        ("augmentation.scale=0.2,1", "augmentation", "scale", (0.2, 1.0)),
        ("model.freeze=backbone", "model", "freeze", "backbone"),
        ("model.options.drop_path_rate=0.1", "model", "options", {"drop_path_rate": 0.1}),
        ("model.options.fc_norm=True", "model", "options", {"fc_norm": True}),
        ("model.options.img_size=[224, 320]", "model", "options", {"img_size": [224, 320]}),
        ("model.options.act_layer=gelu", "model", "options", {"act_layer": "gelu"}),
        ('model.options={"img_size": 96}', "model", "options", {"img_size": 96}),
        ("reduction.keep.3=100", "reduction", "keep", {"3": 100}),
    ],
)
def test_one_change(change, section, name, value):
    before = TrainConfig()
    after = override(before, [change])
    assert getattr(getattr(after, section), name) == value
    assert type(getattr(getattr(after, section), name)) is type(value)
    expected = dataclasses.replace(getattr(before, section), **{name: value})
    assert after == dataclasses.replace(before, **{section: expected})
    assert before == TrainConfig()


def test_the_last_change_holds_and_entries_add_up():
    config = override(TrainConfig(), ["schedule.epochs=3", "schedule.epochs=4", "model.options.a=1"])
    config = override(config, ["model.options.b=2", "model.options.a=3"])
    assert config.schedule.epochs == 4
    assert config.model.options == {"a": 3, "b": 2}
    nested = override(config, ["model.options.head.x=5", "model.options.head.y=6"])
    assert nested.model.options == {"a": 3, "b": 2, "head": {"x": 5, "y": 6}}
    with pytest.raises(ValueError, match=r"model\.options\.a\.x has too many parts: a is 3 and not a table"):
        override(config, ["model.options.a.x=1"])
    assert override(config, ["model.options={}"]).model.options == {}
    assert override(config, []) is config


WRONG_CHANGES = {
    "optimizer.lr": "Write a change as section.name=value, e.g. optimizer.lr=1e-3; got 'optimizer.lr'",
    "lr=1": "Write a change as section.name=value",
    "optimzer.lr=1": "There is no section called 'optimzer'. Did you mean optimizer?",
    "description.x=1": "There is no section called 'description'. Known: model, reduction, data",
    "optimizer.weight_decai=1": "There is no value in optimizer called 'weight_decai'. Did you mean weight_decay?",
    "optimizer.zzz=1": "There is no value in optimizer called 'zzz'. Known: name, lr",
    "optimizer.lr=fast": "optimizer.lr takes a number; got 'fast'",
    "optimizer.lr=true": "optimizer.lr takes a number; got True",
    "optimizer.lr=.5,.6": "optimizer.lr takes a number; got '.5,.6'",
    "optimizer.lr=inf": "optimizer.lr takes a number; got inf",
    "schedule.epochs=1.5": "schedule.epochs takes a whole number; got 1.5",
    "schedule.epochs=true": "schedule.epochs takes a whole number; got True",
    "model.pretrained=yes": "model.pretrained takes true or false; got 'yes'",
    "model.pretrained=1": "model.pretrained takes true or false; got 1",
    "reduction.blocks=3,x": "reduction.blocks takes a list",
    "reduction.blocks=3.5": "reduction.blocks takes a whole number; got 3.5",
    "model.freeze=everything": "model.freeze must be one of nothing, backbone; got 'everything'",
    "model.options=3": "model.options takes a table of values; got 3",
    "model.options=abc": "model.options takes a table of values; got 'abc'",
}


@pytest.mark.parametrize("change", WRONG_CHANGES)
def test_a_wrong_change_is_refused(change):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        override(TrainConfig(), [change])
    assert WRONG_CHANGES[change] in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"optimzer": {}}, "There is no value in FILE called 'optimzer'. Did you mean optimizer?"),
        ({"optimizer": {"lrr": 1}}, "There is no value in FILE: optimizer called 'lrr'. Did you mean lr?"),
        ({"optimizer": 3}, "FILE: optimizer must be a section of values, got 3."),
        ({"source": 3}, "FILE: source takes text; got 3."),
        ({"optimizer": {"lr": "1e-3"}}, "FILE: optimizer.lr takes a number; got '1e-3'."),
        ({"optimizer": {"lr": [1.0]}}, "FILE: optimizer.lr takes a number; got [1.0]."),
        ({"schedule": {"epochs": 3.0}}, "FILE: schedule.epochs takes a whole number; got 3.0."),
        ({"data": {"labels": 0}}, "FILE: data.labels takes true or false; got 0."),
        ({"reduction": {"blocks": 3}}, "FILE: reduction.blocks takes a list; got 3."),
        ({"reduction": {"blocks": ["3"]}}, "FILE: reduction.blocks takes a whole number; got '3'."),
        ({"reduction": {"keep": [3]}}, "FILE: reduction.keep takes a table of values; got [3]."),
        (
            {"objective": {"kind": ["classify"]}},
            "FILE: objective.kind must be one of classify, distill, power-search, dynamicvit",
        ),
    ],
)
def test_wrong_data_are_refused_with_their_place(data, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        read_config(data, "FILE")
    assert message in str(error.value)


def test_two_configurations_share_no_options():
    read_config({}).model.options["img_size"] = 96
    assert TrainConfig().model.options == {}
    given_options = {"img_size": 96}
    config = read_config({"model": {"options": given_options}})
    given_options["img_size"] = 128
    assert config.model.options == {"img_size": 96}
