"""Every method runs outside PyTorch: one file for any batch size, in ONNX Runtime and in OpenVINO."""

from __future__ import annotations

import itertools

import pytest
import torch

import foveate as fv
from pairs import Pair, pair_id
from served import RUNTIMES, program_of
from zoo import GRID, ONE_PER_LIBRARY, defaults, fits, images, main_output, make

DEPTH = 2
PRODUCT = [(m, f) for f, m in itertools.product(ONE_PER_LIBRARY, defaults()) if fits(m, f)]


def _with_another_library_each() -> list[Pair]:
    numbered = enumerate(defaults())
    turns = ((m, ONE_PER_LIBRARY[n % 3 :] + ONE_PER_LIBRARY) for n, m in numbered)
    return [(method, next(family for family in families if fits(method, family))) for method, families in turns]


def toy(method, family, **options):
    """Two blocks, of which the first reduces, or both where the method sets its counts; a mixture has a third."""
    if isinstance(method, fv.Mixture):
        return fv.reduce_(make(family, 3), method, fv.KeepRate(0.6, blocks=(0, 2)), **options)
    schedule = fv.KeepRate(0.6, blocks=(0,)) if method.own_counts(DEPTH, GRID) is None else None
    return fv.reduce_(make(family, DEPTH), method, schedule, **options)


def assert_the_same_in_all_runtimes(model):
    program = program_of(model, images(3))
    for name, load in RUNTIMES.items():
        run = load(program)
        for batch in (1, 5):
            with torch.no_grad():
                expected = main_output(model, images(batch))
            found = [out for out in run(images(batch)) if out.shape == expected.shape]
            assert any((out - expected).abs().max() < 1e-4 for out in found), (name, batch)


@pytest.mark.parametrize("pair", _with_another_library_each(), ids=pair_id)
def test_every_method_gives_the_eager_result_in_all_runtimes(pair):
    assert_the_same_in_all_runtimes(toy(*pair))


@pytest.mark.export
@pytest.mark.parametrize("pair", PRODUCT, ids=pair_id)
def test_every_method_on_every_library(pair):
    method, family = pair
    if method.own_counts(DEPTH, GRID) is not None or isinstance(method, fv.Mixture):
        return assert_the_same_in_all_runtimes(toy(method, family))
    model = fv.reduce_(make(family, 3), method, fv.KeepRate(0.6, blocks=(0, 1)))
    return assert_the_same_in_all_runtimes(model)


@pytest.mark.export
@pytest.mark.parametrize("output", ["grid", "grid-residual", "grid-attention"])
@pytest.mark.parametrize("method", [fv.ToMe(), fv.TopK(), fv.EViT()], ids=lambda m: m.name)
def test_features_spread_back_to_patches(method, output):
    assert_the_same_in_all_runtimes(toy(method, "timm-registers-layerscale", output=output))


@pytest.mark.export
def test_counts_that_depend_on_the_image():
    model = fv.reduce_(make("timm-cls", DEPTH), fv.ClusterAttention(average=0.5), fv.KeepRate(0.6, blocks=(0, 1)))
    fv.models.fit_cluster_counts_(model, [images(5)])
    assert_the_same_in_all_runtimes(model)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("method", [fv.ToMe(), fv.Ward(), fv.ClusterAttention()], ids=lambda m: m.name)
def test_a_trace_runs_for_any_batch(method):
    model = toy(method, "timm-cls")
    with torch.no_grad():
        traced = torch.jit.trace(model, images(3), check_trace=False)
        for batch in (1, 3, 5):
            torch.testing.assert_close(traced(images(batch)), model(images(batch)), rtol=1e-4, atol=1e-5)
