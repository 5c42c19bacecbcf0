"""Table 1 of distillation into EViT: what holds, that a wrong figure is seen, two recounts, and what --speed adds."""

import dataclasses
import json
import math
from contextlib import contextmanager

import pytest
import timm
import torch
from timm.layers import LayerScale
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate.evaluation.environment import Environment
from foveate.report import SpeedResult
from foveate.tables import evit as subject
from foveate.tables.models import build_shapes
from foveate.tables.registry import SpeedOptions
from foveate_cli.main import main

SOMEWHERE = Environment("a processor", 2, 1, "cpu", "float32", "2", "1", "0")


@pytest.fixture(scope="module")
def counts():
    return {line.name: subject.count(line) for line in subject.LINES}


@pytest.fixture(scope="module")
def built():
    return subject.evit()


@pytest.fixture(scope="module")
def by_name(built):
    """A row's cells by column, by model."""
    return {row.cells[0]: dict(zip(built.columns, row.cells, strict=True)) for row in built.rows}


def as_shapes(line):
    return build_shapes(line.model.name, **line.model.options)


@pytest.fixture
def asked(monkeypatch, counts):
    """Collect the measurements that are asked for, and answer them without measuring."""
    calls = []
    monkeypatch.setattr(subject, "count", lambda line: counts[line.name])
    monkeypatch.setattr(subject, "load_model", lambda name, options: build_shapes(name, **options))

    def answer(model, method, schedule, **options):
        calls.append({"model": model, "method": method, "schedule": schedule, **options})
        rates = (10.0, 20.0, 30.0) if len(calls) == 1 else (12.0, 36.0, 40.0)
        sizes = {"batch_size": options["batch_size"], "image_size": options["image_size"]}
        rounds = options["rounds"] or 9
        return SpeedResult(
            *rates, 2.5, (2.25, 2.75), 4.0, 0.9, (0.8, 1.0), **sizes, rounds=rounds, environment=SOMEWHERE
        )

    monkeypatch.setattr(subject, "measure_speed", answer)
    return calls


def tokens_of(line):
    """Patch tokens that enter and leave each of the student's blocks, by the words of the paper."""
    n, pairs = 256, []
    for block in range(12):
        left = n
        if line.rate is not None and block in (3, 6, 9):
            left = math.ceil(line.rate * n) + line.fuse
        pairs.append((n, left))
        n = left
    return pairs


def plain_macs(line):
    """The rule by hand, for ViT-S/14."""
    d, total = 384, 256 * 3 * 14 * 14 * 384
    for n, left in tokens_of(line):
        m, after = n + 1, left + 1
        total += 4 * m * d * d + 2 * m * m * d + 8 * after * d * d
        total += m * d + m * d + after * d  # norm1, q * scale, norm2
        if line.fuse and left < n:
            total += (n - left + 1) * d
    return total + after * d


def test_everything_printed_holds(built, by_name):
    judged = {row.cells[0]: row.holds for row in built.rows if row.holds is not None}
    assert judged == dict.fromkeys(("ViT-S", "EViT-S/0.7", "EViT-S/0.5", "ViT-L"), True)
    assert "Parameters: 4 of 4; MACs: 4 of 4." in built.note
    for name, cells in by_name.items():
        if name in subject.PRINTED:
            assert f"{cells['MACs as paper']:.1f}" == subject.PRINTED[name].macs
            assert abs(cells["off by"]) <= 0.05


def test_the_fused_token_is_shown_and_not_judged(built, by_name):
    fused = {row.cells[0]: row.holds for row in built.rows if "fused" in row.cells[0]}
    assert fused == {"0.7, fused": None, "0.5, fused": None}
    assert f"{by_name['0.7, fused']['MACs as paper']:.1f}" == "3991.7"
    assert f"{by_name['0.5, fused']['MACs as paper']:.1f}" == "3040.6"
    assert by_name["0.7, fused"]["MACs printed"] is None


@pytest.mark.parametrize("line", subject.LINES[:-1], ids=lambda line: line.name)
def test_a_plain_formula_gives_the_same(line, counts):
    assert counts[line.name].as_paper == plain_macs(line)


@pytest.mark.parametrize("line", subject.LINES, ids=lambda line: line.name)
def test_a_model_that_runs_gives_the_same(line, counts):
    """Modules are watched while images go through; the scale of q hides in a kernel and is added by hand."""
    model = fv.reduce_(as_shapes(line).eval(), line.method, line.schedule)
    image = torch.empty(1, *subject.IMAGE_SIZE, device="meta")
    elements = 0

    def watch(module, inputs, output):
        nonlocal elements
        elements += inputs[0].numel()

    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm | LayerScale):
            module.register_forward_hook(watch)
    for block in model.blocks:
        block.norm1.register_forward_hook(watch)  # as many elements as q has
    flops = FlopCounterMode(display=False)
    with flops, torch.no_grad():
        model(image)
    counted, cost = counts[line.name], fv.cost(model, subject.IMAGE_SIZE)
    fused = sum(n - left + 1 for n, left in tokens_of(line) if line.fuse and left < n) * 384
    assert counted.true == flops.get_total_flops() // 2
    assert counted.as_paper == counted.true - cost.reduction_macs + elements + fused


def test_tokens_fall_as_the_paper_says():
    left = {line.name: [after + 1 for _, after in tokens_of(line)][3::3] for line in subject.LINES}
    assert left["EViT-S/0.7"] == [181, 127, 90]
    assert left["EViT-S/0.5"] == [129, 65, 33]


def test_parameters_to_the_last_one(counts):
    params = {name: counted.params for name, counted in counts.items()}
    assert params.pop("ViT-L") == 304_368_640
    assert set(params.values()) == {21_619_584}


def test_only_the_mask_token_is_added():
    model = as_shapes(subject.TEACHER)
    assert not [name for name, _ in model.named_parameters() if "mask" in name]
    assert sum(p.numel() for p in model.parameters()) == 304_368_640 - 1024
    assert model.pos_embed.shape[1] == 37 * 37 + 1


def test_true_macs_are_those_of_cost(by_name):
    model = as_shapes(subject.STUDENT)
    assert by_name["ViT-S"]["true MACs"] == fv.cost(model).macs / 1e6
    fv.reduce_(model, fv.EViT(), fv.KeepRate(0.5, (3, 6, 9)))
    assert by_name["0.5, fused"]["true MACs"] == fv.cost(model).macs / 1e6


@pytest.mark.parametrize(
    ("name", "changes", "score"),
    [
        ("ViT-S", {"macs": "6127.3"}, "Parameters: 4 of 4; MACs: 3 of 4"),
        ("EViT-S/0.7", {"macs": "3991.7"}, "Parameters: 4 of 4; MACs: 3 of 4"),
        ("ViT-L", {"params": "304.3"}, "Parameters: 3 of 4; MACs: 4 of 4"),
    ],
)
def test_a_wrong_figure_fails(monkeypatch, capsys, name, changes, score, counts):
    monkeypatch.setattr(subject, "count", lambda line: counts[line.name])
    monkeypatch.setitem(subject.PRINTED, name, dataclasses.replace(subject.PRINTED[name], **changes))
    assert main(["tables", "evit"]) == 1
    out = capsys.readouterr().out
    (failed,) = [line for line in out.splitlines() if " NO" in line]
    assert failed.split()[0] == name
    assert score in out


def test_nothing_is_measured_unless_asked(asked, capsys):
    assert main(["tables", "evit"]) == 0
    assert "run foveate tables evit --speed" in capsys.readouterr().out
    assert main(["tables", "evit", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["speed"] is None
    assert asked == []


def test_what_is_measured(asked):
    labels, shown = [], []

    @contextmanager
    def progress(label):
        labels.append(label)
        yield lambda phase, done, total: shown.append((done, total))

    subject.speeds(SpeedOptions(seconds=7, progress=progress))
    assert labels == ["EViT-S/0.7, batch 32", "EViT-S/0.5, batch 32", "ViT-L, batch 32"]
    assert shown == [(0, 6), (0, 6), (0, 3)]  # before the models are built
    asked_for = [(call["method"], call["schedule"], call["rounds"], call["warmup"]) for call in asked]
    assert asked_for == [
        (fv.EViT(fuse=False), fv.KeepRate(0.7, (3, 6, 9)), None, 2),
        (fv.EViT(fuse=False), fv.KeepRate(0.5, (3, 6, 9)), None, 2),
        (fv.EViT(fuse=False), fv.Keep({}), 3, 1),
    ]
    assert [call["model"].embed_dim for call in asked] == [384, 384, 1024]
    for call in asked:
        assert (call["batch_size"], call["image_size"], call["seconds"]) == (32, (3, 224, 224), 7)
        call["progress"]("rounds", 5, 6)
        assert {p.dtype for p in call["model"].parameters()} == {torch.float32}
    assert shown[3:] == [(5, 6)] * 3


def test_measured_rates_stand_beside_the_printed_ones(asked):
    built = subject.evit(SpeedOptions())
    speed = built.speed
    assert "--speed" not in built.note
    assert [row.cells for row in speed.rows] == [
        ("ViT-S", 940.9, 11.0, None, None, None, None, None, None),
        ("EViT-S/0.7", 1443.1, 20.0, 1443.1 / 940.9, 2.5, 2.25, 2.75, 4.0, 9),
        ("EViT-S/0.5", 1831.3, 36.0, 1831.3 / 940.9, 2.5, 2.25, 2.75, 4.0, 9),
        ("ViT-L", 72.8, 12.0, None, None, None, None, None, 3),
    ]
    assert all(row.holds is None for row in speed.rows)
    assert "a processor, 2 cores" in speed.note


def test_the_command_prints_and_writes_speeds(asked, capsys):
    assert main(["tables", "evit", "--speed", "--seconds", "3"]) == 0
    out = capsys.readouterr().out
    assert "Images per second" in out
    assert "run foveate tables" not in out
    assert [call["seconds"] for call in asked] == [3.0] * 3
    tables = [line for line in out.splitlines() if line.startswith(" ")]
    assert len(tables) >= 14
    assert max(len(line) for line in tables) <= 80  # a terminal's width
    assert main(["tables", "evit", "--speed", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["holds"] is True
    assert [row["cells"][0] for row in document["speed"]["rows"]] == ["ViT-S", "EViT-S/0.7", "EViT-S/0.5", "ViT-L"]
    assert document["speed"]["columns"] == list(subject.SPEED_COLUMNS)


def test_small_models_are_really_measured(monkeypatch):
    tiny = {"patch_size": 56, "embed_dim": 24, "num_heads": 2, "num_classes": 0}
    monkeypatch.setattr(subject, "load_model", lambda name, options: timm.create_model("vit_small_patch16_224", **tiny))
    monkeypatch.setattr(subject, "BATCH_SIZE", 1)
    speed = subject.speeds(SpeedOptions(seconds=0.01))
    assert [row.cells[-1] for row in speed.rows] == [None, 6, 6, 3]
    assert all(row.cells[2] > 0 for row in speed.rows)
    assert fv.__version__ in speed.note
