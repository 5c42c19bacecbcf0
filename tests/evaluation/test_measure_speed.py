"""The measurement: who is timed in which order, what the numbers mean, and that nothing of the user's changes."""

import copy
import dataclasses
from itertools import pairwise

import pytest
import timm
import torch

import foveate as fv
from foveate.evaluation import SpeedResult, measure_speed, speed, timing
from foveate.evaluation.environment import Environment, available_cores, cpu_name
from foveate.methods import Site

VARIANTS = (speed.UNREDUCED, speed.REDUCED, speed.FREE_SLICE)
SOMEWHERE = Environment("a processor", 2, 1, "cpu", "float32", "2", "1", "0")


@pytest.fixture(scope="module")
def model():
    return timm.create_model("test_vit").eval()


def quick(model, method=None, schedule=None, **options):
    options = {"batch_size": 2, "rounds": 3, "warmup": 1} | options
    return measure_speed(model, method or fv.ToMe(), schedule or fv.RemovePerBlock(8), **options)


def summary_of(*rounds, mac_ratio=2.0, batch_size=4):
    named = [dict(zip(VARIANTS, times, strict=True)) for times in rounds]
    return speed.summarize(named, mac_ratio, batch_size, (3, 8, 8), SOMEWHERE)


def test_each_round_times_every_variant_once_and_the_order_rotates():
    calls = []
    timers = {name: lambda name=name: calls.append(name) or 1.0 for name in "ABC"}
    assert timing.interleave(timers, 4) == [{"A": 1.0, "B": 1.0, "C": 1.0}] * 4
    assert "".join(calls) == "ABCBCACABABC"
    for name in "ABC":
        assert len({before for before, after in pairwise(calls) if after == name}) == 2  # never only one predecessor


def test_progress_counts_rounds():
    seen = []
    timing.interleave({"A": lambda: 1.0}, 3, progress=lambda phase, done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("seconds", "done", "elapsed", "rounds"),
    [(20, 1, 0.1, 201), (20, 10, 10, 21), (1, 1, 60, 6), (1, 7, 60, 9), (1, 9, 60, 9), (1, 3, 0.1, 30)],
)
def test_rounds_fill_the_time_in_threes(seconds, done, elapsed, rounds):
    assert timing.rounds_within(seconds, done, elapsed) == rounds


def test_a_hiccup_does_not_end_the_measurement():
    """The first two rounds take 6 of the 9 seconds; the others go on until the time is up."""
    times = iter([1.0] * 6 + [0.1] * 1000)
    timers = {name: lambda: next(times) for name in "ABC"}
    assert len(timing.interleave(timers, None, seconds=9)) == 12


def test_ratios_are_paired_within_a_round():
    """The second half of the rounds runs on a machine ten times slower; the ratios do not notice."""
    steady, slow = (4.0, 2.0, 1.0), (40.0, 20.0, 10.0)
    result = summary_of(steady, steady, slow, slow, slow)
    assert result.speed_up == 2
    assert result.efficiency == 0.5
    assert result.speed_up_quartiles == (2, 2)
    assert result.unreduced_per_second == 4 / 40  # plain medians
    assert result.reduced_per_second == 4 / 20
    assert result.free_slice_per_second == 4 / 10


def test_one_outlier_does_not_move_the_medians():
    result = summary_of((4, 2, 1), (4, 2, 1), (4000, 2, 1), (4, 2, 1), (4, 2, 1))
    assert result.speed_up == 2
    assert result.unreduced_per_second == 1


def test_realized_is_the_share_of_the_mac_ratio():
    assert summary_of((3, 2, 1), mac_ratio=2.0).realized == 0.75


def test_a_result_is_complete_and_consistent(model):
    result = quick(model, exact_last_block=True, batch_size=3, rounds=4)
    reduced = fv.reduce_(copy.deepcopy(model), fv.ToMe(), fv.RemovePerBlock(8), exact_last_block=True)
    assert result.mac_ratio == fv.cost(model).macs / fv.cost(reduced).macs
    assert result.realized == result.speed_up / result.mac_ratio
    assert (result.batch_size, result.rounds, result.image_size) == (3, 4, (3, 160, 160))
    numbers = [value for value in dataclasses.asdict(result).values() if isinstance(value, float)]
    assert len(numbers) == 7
    assert all(value > 0 for value in numbers)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.speed_up = 3  # type: ignore[misc]


def test_the_environment_names_machine_and_versions(model, monkeypatch):
    monkeypatch.setattr(speed, "timer", lambda variant, images: lambda: 0.1)  # two threads crawl on a busy machine
    environment = quick(model, threads=2).environment
    assert environment.cpu == cpu_name() != ""
    assert environment.cores == available_cores() >= 1
    assert environment.threads == 2
    assert (environment.dtype, environment.device) == ("float32", "cpu")
    assert (environment.torch, environment.timm) == (torch.__version__, timm.__version__)
    assert environment.foveate == fv.__version__
    assert environment.cpu in str(environment)


def test_the_users_model_is_untouched(model):
    model = copy.deepcopy(model).train()
    before, kind = {k: v.clone() for k, v in model.state_dict().items()}, type(model)
    quick(model, dtype=torch.float64)
    assert type(model) is kind
    assert model.training
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)


@pytest.mark.parametrize("fails", [False, True])
def test_the_thread_count_is_restored(model, monkeypatch, fails):
    before = torch.get_num_threads()
    seen = []

    def fake_timer(variant, images):
        def run_once():
            seen.append(torch.get_num_threads())
            if fails:
                raise RuntimeError("out of memory")
            return 1.0

        return run_once

    monkeypatch.setattr(speed, "timer", fake_timer)
    if fails:
        with pytest.raises(RuntimeError, match="out of memory"):
            quick(model, threads=before + 1)
    else:
        quick(model, threads=before + 1)
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


def test_time_decides_the_rounds(model, monkeypatch):
    monkeypatch.setattr(speed, "timer", lambda variant, images: lambda: 0.1)
    assert quick(model, rounds=None, seconds=9).rounds == 30
    assert quick(model, rounds=None, seconds=0.01).rounds == timing.FEWEST_ROUNDS


SITES = pytest.mark.parametrize("site", list(Site), ids=lambda site: site.value)


@SITES
def test_the_free_slice_has_the_same_counts_at_the_same_site(model, site):
    method = fv.FreeSlice(site=site)
    variants = speed._variants(model, fv.Reduction(method, fv.Keep({1: 60, 3: 20})), (3, 160, 160))
    reduced, free = variants[speed.REDUCED].foveate, variants[speed.FREE_SLICE].foveate
    assert free.plan == reduced.plan
    assert free.method == fv.FreeSlice(site=site)


def test_the_free_slice_follows_the_images_not_the_size_the_model_was_made_for():
    model = timm.create_model("test_vit", dynamic_img_size=True)
    size = (3, 320, 320)  # 400 patches where the model was made for 100
    variants = speed._variants(model, fv.Reduction(fv.EViT(), fv.KeepRate(0.9), exact_last_block=True), size)
    reduced, free = variants[speed.REDUCED], variants[speed.FREE_SLICE]
    assert free.foveate.plan_for((20, 20)) == reduced.foveate.plan_for((20, 20))
    assert fv.cost(free, size).macs < fv.cost(reduced, size).macs
    assert quick(model, fv.EViT(), fv.KeepRate(0.9), image_size=size, batch_size=1).image_size == size


def test_variants_share_no_tensor(model):
    variants = speed._variants(model, fv.Reduction(fv.ToMe(), fv.RemovePerBlock(8)), (3, 160, 160))
    pointers = [p.data_ptr() for m in (model, *variants.values()) for p in m.parameters()]
    assert len(set(pointers)) == len(pointers)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"warmup": 0}, "warmup must be an integer"),
        ({"rounds": 1.5}, "rounds must be an integer"),
        ({"threads": True}, "threads must be an integer"),
        ({"rounds": None, "seconds": 0}, "seconds must be above 0, got 0"),
        ({"device": "abacus"}, "Device 'abacus' is not available"),
        ({"image_size": (160, 160)}, r"image_size must be \(channels, height, width\)"),
        ({"image_size": (3, 100, 160)}, "The image is 100 x 160"),
    ],
)
def test_wrong_requests_are_refused(model, options, words):
    with pytest.raises(ValueError, match=words):
        quick(model, **options)


def test_a_reduced_model_is_refused_as_everywhere(model):
    reduced = fv.reduce_(copy.deepcopy(model), fv.ToMe(), fv.RemovePerBlock(8))
    with pytest.raises(ValueError, match="already reduced"):
        quick(reduced)


def test_a_single_round_has_quartiles(model):
    result = quick(model, rounds=1)
    assert isinstance(result, SpeedResult)
    assert result.speed_up_quartiles == (result.speed_up, result.speed_up)
