"""A bounded part of ``python -m tests.fuzz``, and the input that was once answered badly."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported

import pytest
import torch

import foveate as fv

from . import commands, files, judging
from .calls import Spoiled, case_of, expression_case
from .drawing import draw_case
from .judging import Case, Verdict, judge
from .materials import Materials
from .targets import TARGETS

SEED = 0
BOUNDED = {"calls": 80, "commands": 50, "files": 70}
"""Cases of each area, so that all of this file takes less than 20 s of a processor."""

MENDED_CALLS = (
    "fv.trace(reduced_model(), images).after('tome')",
    "fv.trace(reduced_model(), images).owner(True)",
    "fv.trace(model, torch.zeros(2, 3, 16, 16, dtype=torch.float64))",
    "fv.features(model, torch.zeros(2, 3, 16, 16, device='meta'))",
    "fv.features(model, images, block=fv.Keep({}))",
    "fv.inspect(nested(2000))",
    "fv.reduce_(model, None)",
    "fv.reduced(model, None).__enter__()",
    "fv.list_methods(3)",
    "fv.list_methods(kind=['merge'])",
    "fv.Reduction.parse([])",
    "fv.Reduction('tome', 0.5).plan(3)",
    "fv.Reduction.from_dict(nested(2000))",
    "fv.Reduction(nested(2000))",
    "fv.Reduction('tome', 0.5, unit_qk=np.array([1, 2]))",
    "fv.reduce_(model, fv.DynamicViT(seed=10**20), 0.7)",
    "fv.restore_(3)",
    "fv.is_reduced(3)",
    "fv.Keep(0.5)",
    "fv.Keep('12')",
    "fv.Keep({1: 4, 'a': 3})",
    "fv.KeepRate(0.5, blocks=fv.ToMe())",
    "fv.KeepRate(0.5, blocks=torch.zeros(0))",
    "fv.Budget(0.5, blocks=['a'])",
    "fv.ToMe(proportional_attention=nested(2000))",
    "fv.HVTPool(pool_dim=torch.zeros(2))",
    "fv.FreeSlice(site=np.array([1, 2]))",
    "fv.measure_speed(model, 'topk', 0.7, batch_size=1, seconds='1')",
    "fv.measure_speed(model, 'topk', 0.7, batch_size=1, rounds=1, dtype=3)",
    "fv.measure_speed(model, 'topk', 0.7, batch_size=1, rounds=1, device={})",
    "fv.measure_speed(model, 'topk', 0.7, batch_size=1, rounds=1, progress=3)",
    "fv.compare(model, images, methods=model)",
    "fv.compare(model, images, budgets='0.5')",
    "fv.compare(model, images, budgets=torch.zeros(2))",
    "fv.compare(model, images, seconds=None)",
    "fv.compare(model, images, seed='0')",
    "fv.compare(model, images, checkpoints=3)",
    "fv.compare(model, images, checkpoints=nested(2000))",
    "fv.compare(model, images, workers=0.5)",
    "fv.compare(model, images, max_broken='1')",
    "fv.compare(model, images, classes=[1])",
    "fv.compare(model, images, trained=3)",
    "fv.compare(model, images, name=3)",
    "fv.models.load_model(files.saved, reduction=3)",
    "fv.compare(model, images, data_options=[1])",
    "fv.compare(model, images, resume='no')",
    "fv.train(files.config, overrides=True)",
    "fv.train(files.config, progress=3)",
    "fv.train(files.config, stop=3)",
    "fv.train(files.config, resume='no')",
    "fv.train(3)",
    "fv.models.load_model(files.saved, options={'a': 1})",
    "fv.models.load_model(files.saved, options=images)",
    "fv.models.load_model(files.saved, pretrained='no')",
    "fv.models.load_model(files.saved, weights=3)",
    "fv.models.load_model(3)",
    "fv.models.load_model('vit_tiny_patch16_224', options={'patch_size': 0})",
    "fv.models.convert_weights(images, model)",
    "fv.models.convert_weights(model.state_dict(), 3)",
    "fv.models.fit_cluster_counts_(3, [images])",
    "fv.models.fit_cluster_counts_(fv.reduce_(model, fv.ClusterAttention(ratio=2.0, average=0.5)), 3)",
    "fv.models.fit_cluster_counts_(fv.reduce_(model, fv.ClusterAttention(ratio=2.0, average=0.5)), [images], 0)",
    "fv.models.block_compression('a', 2)",
    "fv.models.block_compression(float('inf'), 2)",
    "fv.models.Clustering(k='5')",
    "fv.models.Clustering(share=3)",
    "fv.models.ClusTR(embed_dims=3)",
    "fv.models.ClusTR(depths=(1, 1))",
    "fv.models.ClusTR(scales=64)",
    "fv.models.ClusTR(drop_path_rate=10**20)",
    "fv.models.ClusTR(img_size=b'bytes')",
    "fv.models.MultiScaleClusterAttention(8, int, (4, 1), fv.models.Clustering())",
    "fv.models.MultiScaleClusterAttention(8, 2, 4, fv.models.Clustering())",
    "fv.models.MultiScaleClusterAttention(8, 2, (4, 1), 3)",
    "fv.models.LVViT(patch_size='a')",
    "fv.models.LVViT(embed_dim=10**20)",
    "fv.models.LVViT(img_size='16')",
    "fv.models.LVViT(num_heads={})",
    "fv.models.LVViT(patch_size=4, img_size=2)",
    "fv.compare(images, images)",
    "fv.compare(model, images, progress=nn.Module())",
    "fv.compare(embedding_model(), images, data_options={'0': '4'})",
    "fv.search(model, images, macs=0.8, workers='tome')",
    "fv.search(model, images, macs=0.8, methods=torch.float16)",
    "fv.search(model, images, macs=0.8, seconds=float('nan'))",
    "fv.export(model, 'new', 'torch-export', classes=model)",
    "fv.export(model, 'new', 'torch-export', images=0)",
    "fv.export(model, 'new', 'torch-export', tolerance=float('nan'))",
    "fv.export(model, 'new', 'torch-export', input_size=(10**9, 10**9))",
    "fv.load_exported(3)",
    "fv.load_exported('new', trusted=float('nan'))",
    "fv.load_exported('new', threads=0)",
    "fv.load(files.saved, model=meta_model())",
    "fv.check_method(nested(2000))",
    "fv.Predictor(model, classes=True)",
    "fv.Predictor(model, image_size=object(), untrained=True)",
    "fv.Predictor(model, top_k=None)",
    "fv.Predictor(model, column={0: 4})",
    "predicted(fv.Predictor(model, weights='abc'))",
    "fv.Predictor(model, image_size=(1, 10**9, 10**9), untrained=True)",
    "fv.compare(embedding_model(), images, split='val')",
    "fv.compare(embedding_model(), torch.zeros(2, 3, 4, 4), methods=['topk'], budgets=(0.7,))",
    "fv.models.load_model(files.saved, weights='')",
    "fv.models.fit_cluster_counts_(fv.reduce_(model, fv.ClusterAttention(ratio=2.0, average=0.5)), [images], 10**20)",
    "fv.train(files.config, overrides=(3, 1.5, 'a'))",
    "fv.compare(fv.Method, images)",
    "fv.models.fit_cluster_counts_(fv.reduce_(model, fv.ClusterAttention(ratio=2.0, average=0.5)), torch.zeros(()))",
    "fv.measure_speed(model, 'topk', 0.7, batch_size=1, rounds=1, threads=10**20)",
    "fv.save_schedule(fv.Keep({}), '')",
    "fv.features(model, torch.zeros(2, 1, 16, 16))",
    "fv.features(model, images, block='')",
    "fv.load_exported(files.exported)(torch.zeros(2, 3, 16, 16).to_sparse())",
    "fv.models.LVViT(patch_size=4, embed_dim=2, img_size=16, num_heads=16)",
    "fv.cost(model, nested(2000))",
    "fv.compare(model, images, budgets=nested(2000))",
    "fv.recover(reduced_model(), images.repeat(32, 1, 1, 1), minutes=0.05, steps=1, limit=1)",
)
MENDED_COMMANDS = (
    f"cost {{plain}} --method tome --budget {'x' * 5000}",
    "show tokens {plain} {pictures}/val/dark/1.png --method tome --keep-rate 0.6 --image-size 3x16",
    "cost hf:saved",
    "cost hf:missing",
    "train {recipe} --data {pictures} --out empty",
    "train {recipe} --data {pictures} --out /proc/x",
    "speed {plain} --method tome --keep-rate 0.6 --device meta",
    "models ''",
    "train {recipe} --data /proc --out out",
)
MENDED_FILES = (
    ("saved foveate.json, sealed again", "model = true"),
    ("saved foveate.json, sealed again", "model.library = []"),
    ("saved foveate.json, sealed again", "model.architecture removed"),
    ("saved foveate.json, sealed again", "model.options.patch_size = 0"),
    ("saved foveate.json, sealed again", "model.options.img_size = {}"),
    ("saved foveate.json, sealed again", "model.options.in_chans = 'abc'"),
    ("results.json, sealed again", "entries.0 = []"),
    ("results.json, sealed again", "entries.0.macs removed"),
    ("results.json, sealed again", "recommendation = {}"),
    ("partial.json, sealed again", "measured.speeds = []"),
    ("partial.json, sealed again", "measured.fidelity removed"),
    ("partial.json, sealed again", "measured.fidelity.sums.Exact last block removed"),
    ("partial.json, sealed again", "measured.fidelity.sums.Unreduced.divergence = []"),
    ("partial.json, sealed again", "measured.fidelity.sums.TopK 0.7.compared = 0.5"),
    ("saved foveate.json, sealed again", "model.architecture = {}"),
    ("saved foveate.json, sealed again", "model.options.depth = 0"),
    ("saved foveate.json, sealed again", "model.options.depth = 10**20"),
    ("results.json", "bit"),
    ("results.json", "entries.0.macs = 0"),
    ("results.json, sealed again", "entries.0.macs = 'abc'"),
    ("results.json, sealed again", "recommendation.entry = 10**20"),
    ("results.json, sealed again", "data.note = {}"),
    ("partial.json", "bit"),
    ("partial.json, sealed again", "measured.fidelity.broken = -1"),
    ("checkpoint", "cut"),
    ("checkpoint", "folder"),
    ("checkpoint, sealed again", "state = []"),
    ("checkpoint, sealed again", "state.batch = 10**20"),
    ("checkpoint, sealed again", "optimizer.groups removed"),
    ("checkpoint, sealed again", "config = null"),
    ("checkpoint, sealed again", "identity = 'abc'"),
    ("checkpoint, sealed again", "state.history nested 2,000 deep"),
    ("weights.pth", "empty"),
    ("recipe", "schedule nested 2,000 deep"),
    ("transformers config.json", "image_size = 1e20"),
    ("transformers config.json", "id2label renamed"),
    ("transformers config.json", "hidden_size nested 2,000 deep"),
    ("transformers config.json", "cut"),
    ("transformers weights", "cut"),
    ("transformers weights", "empty"),
    ("classes by command", "garbage"),
    ("COCO keypoints", "images.0.width = [[1]]"),
    ("COCO keypoints", "images.0.height = 10**20"),
    ("COCO keypoints", "annotations.0.keypoints = 0.5"),
    ("COCO keypoints", "categories.0.skeleton = [[1]]"),
    ("COCO instances", "annotations.0.image_id = []"),
    ("COCO instances", "annotations.1.segmentation.counts = [[1]]"),
    ("COCO instances", "annotations.2.segmentation.counts = 'abc'"),
    ("exported foveate.json, sealed again", "input = 1e20"),
    ("exported foveate.json, sealed again", "input.dtype = 'abc'"),
    ("exported foveate.json, sealed again", "outputs = []"),
)


WITHOUT_ARGUMENTS = {"PoWER", "PoWERSearch", "TopK", "models"}
MADE_BY_US = {"Assignment", "Cost", "Trace", "Method", "Schedule", "PlanError", "UnsupportedModel"}
"""Results, base classes and errors; an Assignment is made in every forward pass and checks its shapes alone."""


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    return Materials(tmp_path_factory.mktemp("materials"))


def words_of(verdict: Verdict) -> str:
    return f"{verdict.case.text[:400]}\n    {verdict.cause}\n    {verdict.detail}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.call)
def test_good_calls_return(target, materials):
    """Otherwise a bad argument would hide behind another error."""
    good = tuple((name, parameter.good) for name, parameter in target.parameters.items())
    verdict = judge(case_of(target, Spoiled(good), materials, must_return=True))
    assert not verdict.failed, words_of(verdict)


def test_every_public_name_is_tried():
    tried = {target.call.removeprefix("fv.").partition(".")[0] for target in TARGETS}
    assert set(fv.__all__) - tried - WITHOUT_ARGUMENTS - MADE_BY_US == set()
    names = {target.call.removeprefix("fv.models.") for target in TARGETS if target.call.startswith("fv.models.")}
    assert set(fv.models.__all__) - names == {"demo", "DenseModel", "head_names"}  # dense_model makes the second


@pytest.mark.parametrize("area", BOUNDED)
def test_bad_input_ends_in_an_error_of_our_own(area, materials):
    verdicts = [judge(draw_case(area, SEED, number, materials)) for number in range(BOUNDED[area])]
    assert [words_of(verdict) for verdict in verdicts if verdict.failed] == []


@pytest.mark.parametrize("call", MENDED_CALLS)
def test_mended_calls(call, materials):
    verdict = judge(expression_case(call, call, lambda names: False, materials))
    assert not verdict.failed, words_of(verdict)


@pytest.mark.parametrize("line", MENDED_COMMANDS, ids=lambda line: line[:60])
def test_mended_commands(line, materials):
    verdict = judge(commands.case_of("mended", line.split(), materials))
    assert not verdict.failed, words_of(verdict)


@pytest.mark.parametrize(("name", "change"), MENDED_FILES)
def test_mended_files(name, change, materials):
    kind = next(kind for kind in files.KINDS if kind.name == name)
    verdict = judge(files.changed_case(kind, change, materials))
    assert not verdict.failed, words_of(verdict)


def _case(run) -> Case:
    return Case("calls", "test", "test", run)


def _hangs(folder: Path) -> None:
    while True:
        pass


def _leaves_a_file(folder: Path) -> None:
    with judging.nothing_half_written(folder):
        (folder / "new").touch()
        fv.Keep(-1)


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (lambda folder: {}["a"], "raw KeyError"),
        (lambda folder: [].append(), ""),
        (_hangs, "hangs"),
        (_leaves_a_file, "files are changed after an error"),
        (lambda folder: fv.Keep(-1), ""),
        (lambda folder: fv.inspect(torch.nn.Linear(2, 2)), ""),
    ],
)
def test_the_judge_sees_faults(run, cause, monkeypatch):
    monkeypatch.setattr(judging, "LIMIT", 0.2)
    assert judge(_case(run)).cause.startswith(cause)


def test_a_case_is_drawn_again_by_its_number(materials):
    assert draw_case("calls", 3, 14, materials).text == draw_case("calls", 3, 14, materials).text
