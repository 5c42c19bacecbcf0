"""The laws of the loader: what is seen depends on seed and epoch, never on processes, workers or a resume."""

import os
import pickle
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, noisy, number_of, plain

from foveate.data import DataError, Loader, open_data
from foveate.data.loader import stop_signals_blocked
from foveate.data.order import BatchOrder, random_states_kept, seed_everything, seed_from

COUNT = 23
SIZES = {"batch_size": 6, "seed": 5}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        place = folder / "train" / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:02}.png").write_bytes(encoded(number))
    return open_data(folder, "train")


def same(first, second):
    return (
        torch.equal(first.images, second.images)
        and torch.equal(first.targets, second.targets)
        and first.names == second.names
    )


def all_same(first, second):
    first, second = list(first), list(second)
    return len(first) == len(second) and all(map(same, first, second))


def ids(batch):
    return [number_of(image) for image in batch.images]


shapes = st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(1, 5), st.integers(0, 9), st.booleans())


@given(shapes)
def test_processes_together_see_each_batch_of_one_process(shape):
    count, share, world, epoch, train = shape
    size = share * world
    one = list(BatchOrder(count, size, 3, train, False).epoch(epoch))
    ranks = [list(BatchOrder(count, size, 3, train, False, rank, world).epoch(epoch)) for rank in range(world)]
    for number, batch in enumerate(one):
        together = [index for rank in ranks if number < len(rank) for index in rank[number]]
        assert sorted(together) == sorted(batch)
        assert len(together) == len(set(together))
    assert sorted(index for batch in one for index in batch) == list(range(count))


@given(shapes, st.integers(1, 4), st.booleans())
def test_repeated_images_come_in_a_row_and_the_epoch_is_as_long(shape, repeats, drop_last):
    count, share, world, epoch, _ = shape
    size = share * world
    order = BatchOrder(count, size, 3, True, drop_last, repeats=repeats)
    numbers = [number for batch in order.epoch(epoch) for number in batch]
    assert len(numbers) == (count - count % size if drop_last else count)
    assert len(numbers) == len(set(numbers))
    first = [image for batch in BatchOrder(count, size, 3, True, False).epoch(epoch) for image in batch]
    for place, number in enumerate(numbers):
        assert divmod(number, count) == (place % repeats, first[place // repeats])
    ranks = [BatchOrder(count, size, 3, True, drop_last, rank, world, repeats).epoch(epoch) for rank in range(world)]
    assert sorted(number for rank in ranks for batch in rank for number in batch) == sorted(numbers)


def test_copies_of_an_image_are_transformed_anew_and_stay_the_same_image(photos):
    once = next(Loader(photos, noisy, **SIZES, train=True).epoch(1))
    batch = next(Loader(photos, noisy, **SIZES, train=True, repeats=3).epoch(1))
    assert batch.names == tuple(name for name in once.names[:2] for _ in range(3))
    assert torch.equal(batch.images[::3], once.images[:2])  # the first copy draws as if it were alone
    assert len(batch.images.flatten(1).unique(dim=0)) == 6
    evaluation = Loader(photos, plain, **SIZES, train=False, repeats=3)
    assert sum(len(batch) for batch in evaluation.epoch(0)) == COUNT


@given(shapes, st.booleans(), st.data())
def test_an_epoch_entered_later_goes_on_as_it_would_have(shape, drop_last, data):
    count, size, world, epoch, train = shape
    order = BatchOrder(count, size * world, 3, train, drop_last, data.draw(st.integers(0, world - 1)), world)
    whole = list(order.epoch(epoch))
    start = data.draw(st.integers(0, len(order)))
    assert list(order.epoch(epoch, start)) == whole[start:]


@given(st.integers(2, 60), st.integers(0, 2**40), st.integers(0, 100))
def test_seeds_and_epochs_change_the_order_and_nothing_else_does(count, seed, epoch):
    def order(seed, epoch, size):
        return [i for batch in BatchOrder(count, size, seed, True, False).epoch(epoch) for i in batch]

    assert order(seed, epoch, 1) == order(seed, epoch, 7)
    if count > 12:  # two orders of so many agree with a chance of one in 10^9
        assert order(seed, epoch, 1) != order(seed, epoch + 1, 1)
        assert order(seed, epoch, 1) != order(seed + 1, epoch, 1)


def test_seeds_depend_on_every_part_and_its_place():
    seeds = {seed_from(*parts) for parts in ((1, 2, 3), (1, 2, 4), (2, 1, 3), (1, 23), (12, 3), (1, 2), (-1, 2))}
    assert len(seeds) == 7
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_training_sees_every_image_once_with_its_label(photos):
    loader = Loader(photos, plain, **SIZES, train=True, drop_last=False)
    batches = list(loader.epoch(0))
    assert len(batches) == len(loader) == 4
    numbers = [number for batch in batches for number in ids(batch)]
    assert sorted(numbers) == list(range(COUNT))
    assert numbers != sorted(numbers)
    labels = torch.cat([batch.targets for batch in batches])
    assert labels.tolist() == [number % 2 for number in numbers]
    assert labels.dtype == torch.int64
    assert batches[0].images.shape == (6, 3, 4, 4)
    assert batches[0].names[0] == str(photos.pictures.folder / f"class{numbers[0] % 2}" / f"{numbers[0]:02}.png")


def test_training_drops_what_does_not_fill_a_batch_and_evaluation_does_not(photos):
    assert [len(batch) for batch in Loader(photos, plain, **SIZES, train=True).epoch(0)] == [6, 6, 6]
    evaluation = list(Loader(photos, plain, **SIZES, train=False).epoch(3))
    assert [len(batch) for batch in evaluation] == [6, 6, 6, 5]
    assert [n for batch in evaluation for n in ids(batch)] == [*range(0, COUNT, 2), *range(1, COUNT, 2)]


@pytest.mark.parametrize("world", [2, 3, 6])
def test_images_of_all_processes_are_those_of_one_bit_for_bit(photos, world):
    one = list(Loader(photos, noisy, **SIZES, train=True).epoch(2))
    ranks = [Loader(photos, noisy, **SIZES, train=True, rank=rank, world=world).epoch(2) for rank in range(world)]
    for batch, parts in zip(one, zip(*ranks, strict=True), strict=True):
        found = {name: image for part in parts for name, image in zip(part.names, part.images, strict=True)}
        assert {len(part) for part in parts} == {6 // world}
        assert set(found) == set(batch.names)
        assert all(torch.equal(found[name], image) for name, image in zip(batch.names, batch.images, strict=True))


@pytest.mark.parametrize("world", [2, 4, 5])
def test_an_uneven_evaluation_counts_every_image_once(photos, world):
    ranks = [Loader(photos, plain, **SIZES, train=False, rank=rank, world=world).epoch(0) for rank in range(world)]
    assert sorted(n for rank in ranks for batch in rank for n in ids(batch)) == list(range(COUNT))


@pytest.mark.parametrize("train", [True, False])
def test_workers_change_nothing(photos, train):
    alone = Loader(photos, noisy, **SIZES, train=train)
    helped = Loader(photos, noisy, **SIZES, train=train, workers=2)
    for epoch, start in ((0, 0), (1, 0), (1, 2)):  # the same workers, epoch after epoch
        assert all_same(alone.epoch(epoch, start), helped.epoch(epoch, start))


@settings(max_examples=8)
@given(st.integers(0, 3), st.integers(0, 5))
def test_a_resumed_epoch_has_the_same_random_transforms(photos, start, epoch):
    whole = list(Loader(photos, noisy, **SIZES, train=True).epoch(epoch))
    assert all_same(Loader(photos, noisy, **SIZES, train=True).epoch(epoch, start), whole[start:])


def test_random_transforms_change_with_the_epoch_the_image_and_the_seed(photos):
    def noise(seed, epoch):
        batches = Loader(photos, noisy, 6, seed=seed, train=False).epoch(epoch)
        return torch.cat([batch.images[:, :, 0, 0].frac() for batch in batches])

    base = noise(5, 0)
    assert len(base.unique(dim=0)) == COUNT
    assert all(len(column.unique()) == COUNT for column in base.T)  # each of the three generators
    for other in (noise(5, 1), noise(6, 0)):
        assert (base != other).all(dim=0).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callers_random_states_are_left_alone(photos, workers):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    list(Loader(photos, noisy, **SIZES, train=True, workers=workers).epoch(0))
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_random_states_come_back_after_an_error():
    @random_states_kept()
    def fails():
        seed_everything(1)
        raise ZeroDivisionError

    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        fails()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_that_was_killed_ends_with_the_same_weights(photos):
    """Dropout draws from the caller's generator, which a checkpoint keeps beside the weights."""

    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(48, 2))
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(model, optimizer, first, last):
        """Steps first..last-1, counted over epochs of three batches."""
        loader = Loader(photos, noisy, **SIZES, train=True)
        for step in range(first, last):
            if step == first or step % 3 == 0:
                batches = loader.epoch(step // 3, start=step % 3)
            batch = next(batches)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch.images), batch.targets).backward()
            optimizer.step()

    through, optimizer = build()
    train(through, optimizer, 0, 8)
    killed, optimizer = build()
    train(killed, optimizer, 0, 4)
    weights, state = {k: v.clone() for k, v in killed.state_dict().items()}, torch.get_rng_state()
    resumed, optimizer = build()
    resumed.load_state_dict(weights)
    torch.set_rng_state(state)
    train(resumed, optimizer, 4, 8)
    assert all(map(torch.equal, through.state_dict().values(), resumed.state_dict().values()))


def test_only_one_epoch_runs_at_a_time(photos):
    loader = Loader(photos, plain, **SIZES, train=True)
    first = loader.epoch(0)
    next(first)
    second = loader.epoch(1)
    with pytest.raises(RuntimeError, match=r"Another epoch of this loader has started; epoch 0 cannot continue"):
        next(first)
    assert len(list(second)) == 3


def test_an_epoch_that_was_left_is_not_mixed_into_the_next(photos):
    helped = Loader(photos, plain, **SIZES, train=True, workers=2)
    next(helped.epoch(0))
    assert all_same(helped.epoch(1), Loader(photos, plain, **SIZES, train=True).epoch(1))


def test_what_goes_to_workers_can_be_sent(photos):
    """Where processes are not forked, the reader is pickled."""
    loader = Loader(photos, noisy, **SIZES, train=True)
    reader = loader._batches(0, 0).dataset
    keys = [(0, 3), (0, 4)]
    assert same(pickle.loads(pickle.dumps(reader)).__getitems__(keys), reader.__getitems__(keys))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"batch_size must be at least 1, got 0"),
        ({"workers": -1}, r"workers must be at least 0, got -1"),
        ({"rank": 2, "world": 2}, r"rank must be between 0 and world - 1, got rank=2, world=2"),
        ({"repeats": 0}, r"repeats must be at least 1, got 0"),
        ({"max_broken": 5}, r"max_broken must be a share in \[0, 1\], got 5\. For 5 % write 0\.05"),
        ({"world": 4}, r"batch_size=6 is over all processes and must be divisible by world=4"),
        ({"batch_size": 24}, r"23 images do not fill one batch of 24"),
        ({"batch_size": 11, "world": 11, "drop_last": False}, r"The last batch has 1 images for world=11 processes"),
    ],
)
def test_a_wrong_loader_is_refused(photos, options, message):
    with pytest.raises(DataError, match=message):
        Loader(photos, plain, **{"batch_size": 6, "seed": 0, "train": True, **options})


def test_a_wrong_place_in_an_epoch_is_refused(photos):
    loader = Loader(photos, plain, **SIZES, train=True)
    assert list(loader.epoch(0, start=3)) == []
    with pytest.raises(DataError, match=r"An epoch has 3 batches, got start=4"):
        loader.epoch(0, start=4)
    with pytest.raises(DataError, match=r"count from 0, got epoch -1, batch 0"):
        loader.epoch(-1)


def by_brightness(image):
    return torch.zeros(3, 4 + number_of(image) % 2, 4)


def untouched(image):
    return image


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (by_brightness, r"shapes \[\(3, 4, 4\), \(3, 5, 4\)\]; a batch needs a single shape"),
        (untouched, "it returned Image for"),
    ],
)
def test_a_transform_that_gives_no_batch_is_named(photos, transform, message):
    with pytest.raises(DataError, match=message):
        list(Loader(photos, transform, **SIZES, train=True).epoch(0))


class Dying:
    """A transform that ends its process, as the system does where memory runs out."""

    def __call__(self, image):
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(3, 8, 8)


def test_a_worker_that_dies_is_an_error_in_words(photos):
    loader = Loader(photos, Dying(), 2, seed=0, train=False, workers=1)
    with pytest.raises(DataError, match=r"A process that reads images died.*fewer workers or smaller batches"):
        list(loader.epoch(0))


def test_a_stop_signal_reaches_no_worker_before_it_knows_what_to_do():
    with stop_signals_blocked():
        inherited = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert {signal.SIGTERM, signal.SIGINT} <= inherited
    assert not {signal.SIGTERM, signal.SIGINT} & signal.pthread_sigmask(signal.SIG_BLOCK, [])
