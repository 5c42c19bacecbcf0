"""WebDataset shards behind URLs: every image once, the same for a resumed run, no shard read twice."""

import functools
import http.server
import threading

import pytest
from pictures import encoded, members, noisy, number_of, plain, write_shard

from foveate.data import DataError, Loader, StreamedData, open_data
from foveate.data import reading as subject
from foveate.data.order import shuffled
from foveate.training.config import override
from foveate.training.loop import Run
from small_runs import small_config

COUNTS = (5, 3, 4, 6, 2)
TOTAL = sum(COUNTS)


class Quiet(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self):
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *args): ...


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder behind an address, with a list of what was asked for."""
    monkeypatch.setenv("no_proxy", "*")
    asked = []
    handler = type("Handler", (Quiet,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.fixture
def data(server, tmp_path):
    first = 0
    for number, count in enumerate(COUNTS):
        write_shard(tmp_path / f"pets-train-{number}.tar", members(range(first, first + count)))
        first += count
    return open_data(f"wds:{server[0]}/pets-train-{{0..4}}.tar", "train", num_classes=3, length=TOTAL)


def ids(batches):
    return [[number_of(image) for image in batch.images] for batch in batches]


def flat(nested):
    return [number for batch in nested for number in batch]


def loader_of(data, **options):
    return Loader(data, options.pop("transform", plain), **{"batch_size": 4, "seed": 1, "train": True, **options})


def test_a_stream_knows_what_it_was_told(data):
    assert isinstance(data, StreamedData)
    assert (data.labeled, data.num_classes, data.classes, data.length) == (True, 3, None, TOTAL)


def test_repeated_images_of_shards_come_in_a_row_each_transformed_anew(data):
    once, batches = loader_of(data, transform=noisy), list(loader_of(data, transform=noisy, repeats=2).epoch(0))
    assert len(batches) == len(once)
    first = [name for batch in once.epoch(0) for name in batch.names]
    names = [name for batch in batches for name in batch.names]
    assert names == [name for name in first[: TOTAL // 2] for _ in range(2)]
    assert all(len(batch.images.flatten(1).unique(dim=0)) == 4 for batch in batches)
    later = loader_of(data, transform=noisy, repeats=2).epoch(0, 3)
    assert [batch.images.tolist() for batch in later] == [batch.images.tolist() for batch in batches[3:]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_evaluation_sees_every_image_once(data, workers, world):
    ranks = [loader_of(data, train=False, workers=workers, rank=rank, world=world) for rank in range(world)]
    found = [flat(ids(rank.epoch(0))) for rank in ranks]
    assert sorted(flat(found)) == list(range(TOTAL))
    assert all(found)


def test_labels_come_with_their_images(data):
    for batch in loader_of(data).epoch(0):
        assert batch.targets.tolist() == [number_of(image) % 3 for image in batch.images]


def test_one_process_trains_on_every_image_once_an_epoch_in_changing_order(data):
    loader = loader_of(data)
    first, second = flat(ids(loader.epoch(0))), flat(ids(loader.epoch(1)))
    assert sorted(first) == sorted(second) == list(range(TOTAL))
    assert first not in (second, sorted(first))
    assert flat(ids(loader_of(data, seed=2).epoch(0))) != first


def test_images_of_one_shard_are_mixed_in_training_and_stay_in_order_in_evaluation(server, tmp_path):
    write_shard(tmp_path / "s.tar", members(range(20)))
    data = open_data(f"wds:{server[0]}/s.tar", "train", num_classes=3, length=20)
    orders = [flat(ids(loader_of(data).epoch(epoch))) for epoch in (0, 1)]
    assert [sorted(order) for order in orders] == [list(range(20))] * 2
    assert orders[0] not in (orders[1], sorted(orders[0]))
    assert flat(ids(loader_of(data, train=False).epoch(0))) == list(range(20))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2])
def test_every_process_has_as_many_whole_batches(data, workers, world):
    for rank in range(world):
        loader = loader_of(data, workers=workers, rank=rank, world=world)
        found = ids(loader.epoch(0))
        assert len(found) == len(loader) == TOTAL // 4
        assert {len(batch) for batch in found} == {4 // world}


def test_processes_and_workers_share_no_shard(data, server):
    for rank in range(2):
        server[1].clear()
        list(loader_of(data, train=False, workers=2, rank=rank, world=2).epoch(0))
        assert sorted(server[1]) == [f"/pets-train-{number}.tar" for number in range(rank, 5, 2)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", [1, 2, 5])
def test_a_resumed_epoch_goes_on_as_it_would_have(data, workers, start):
    whole = list(loader_of(data, transform=noisy, workers=workers).epoch(3))
    rest = list(loader_of(data, transform=noisy, workers=workers).epoch(3, start))
    assert [batch.names for batch in rest] == [batch.names for batch in whole[start:]]
    assert all((a.images == b.images).all() for a, b in zip(rest, whole[start:], strict=True))


def test_a_resume_decodes_only_what_it_gives(data, monkeypatch):
    decoded = []
    read = subject.Encoded.read
    monkeypatch.setattr(subject.Encoded, "read", lambda self: decoded.append(self.name) or read(self))
    list(loader_of(data).epoch(0, start=4))
    assert len(decoded) == 4


@pytest.mark.parametrize("buffer", [1, 2, 1000])
def test_mixing_gives_each_image_once_and_the_same_for_the_same_key(monkeypatch, buffer):
    monkeypatch.setattr(subject, "BUFFER", buffer)
    mixed = list(subject.mixed(iter(range(50)), 7))
    assert sorted(mixed) == list(range(50))
    assert mixed == list(subject.mixed(iter(range(50)), 7))
    assert (mixed == list(range(50))) is (buffer == 1)


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_broken_images_are_replaced_in_training_and_left_out_of_evaluation(server, tmp_path):
    content = [(f"{n}.png", b"broken" if n == 1 else encoded(n)) for n in range(4)]
    write_shard(tmp_path / "s.tar", content)
    data = open_data(f"wds:{server[0]}/s.tar", "all", length=4)
    assert not data.labeled
    evaluation = loader_of(data, train=False, max_broken=0.5)
    assert (ids(evaluation.epoch(0)), evaluation.broken) == ([[0, 2, 3]], 1)
    (order,) = [batch.names for batch in loader_of(data, max_broken=1.0).epoch(0)]
    assert len(order) == 4
    assert len(set(order)) == 3
    with pytest.raises(DataError, match="1 broken images of 4 are more than"):
        list(loader_of(data, train=False).epoch(0))


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_a_batch_of_which_nothing_can_be_read_is_an_error(server, tmp_path):
    write_shard(tmp_path / "s.tar", [("1.png", b"x"), ("2.png", b"x")])
    data = open_data(f"wds:{server[0]}/s.tar", "train", length=2)
    with pytest.raises(DataError, match="None of the 2 images of a batch can be read"):
        list(loader_of(data, batch_size=2, max_broken=1.0).epoch(0))


def test_shards_without_images_do_not_hang_a_training(server, tmp_path):
    write_shard(tmp_path / "s-0.tar", members([1, 2]))
    write_shard(tmp_path / "s-1.tar", [("notes.txt", b"x")])
    data = open_data(f"wds:{server[0]}/s-{{0..1}}.tar", "train", num_classes=3, length=2)
    full, empty = (loader_of(data, batch_size=2, rank=shuffled(2, 1, 0).index(shard), world=2) for shard in (0, 1))
    assert len(list(full.epoch(0))) == 1
    with pytest.raises(DataError, match=r"s-1\.tar have no images"):
        list(empty.epoch(0))


@pytest.mark.parametrize("length", [550, 1024, 1500, 2048])
def test_a_shard_that_is_cut_off_is_an_error_and_no_broken_image(data, tmp_path, length):
    """Inside an image, between an image and its label, inside a header, between two images."""
    path = tmp_path / "pets-train-2.tar"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"pets-train-2\.tar cannot be read"):
        list(loader_of(data, train=False).epoch(0))


def test_names_as_labels(server, tmp_path):
    content = [("a.png", encoded(1)), ("a.json", b'{"label": "dog"}')]
    write_shard(tmp_path / "s.tar", content)
    data = open_data(f"wds:{server[0]}/s.tar", "train", classes=("cat", "dog"), length=1)
    (batch,) = loader_of(data, batch_size=1).epoch(0)
    assert batch.targets.tolist() == [1]
    wrong = open_data(f"wds:{server[0]}/s.tar", "train", classes=("cat", "cow"), length=1)
    with pytest.raises(DataError, match=r"a\.png: the label 'dog' is not one of the classes \(cat, cow\)"):
        list(loader_of(wrong, batch_size=1).epoch(0))


def test_a_label_out_of_range_is_an_error_when_it_arrives(data, server, tmp_path):
    write_shard(tmp_path / "negative.tar", members([4], label=lambda number: -1))
    negative = open_data(f"wds:{server[0]}/negative.tar", "train", num_classes=2, length=1)
    with pytest.raises(DataError, match=r"0004\.png: label -1 is outside 0\.\.1"):
        list(loader_of(negative, train=False).epoch(0))
    few = open_data(f"wds:{server[0]}/pets-train-0.tar", "train", num_classes=2, length=5)
    with pytest.raises(DataError, match=r"0002\.png: label 2 is outside 0\.\.1"):
        list(loader_of(few, train=False).epoch(0))


def test_a_split_goes_into_the_address(data, server):
    found = open_data(f"wds:{server[0]}/pets-{{split}}-{{0..1}}.tar", "train", num_classes=3)
    assert found.shards == tuple(f"{server[0]}/pets-train-{number}.tar" for number in (0, 1))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("none.tar", {}, r"none\.tar cannot be read: HTTP Error 404"),
        (
            "pets-train-0.tar",
            {"num_classes": None},
            r"whose number is unknown in a stream\. Set num_classes or classes",
        ),
        ("pets-train-0.tar", {"length": 0}, r"length, the number of images in all shards, must be at least 1, got 0"),
        ("pets-train-0.tar", {"split": "val"}, r"not divided into splits"),
        ("empty.tar", {}, r"empty\.tar has no images"),
        ("plain.tar", {"classes": ("a", "b", "c")}, r"plain\.tar has no labels, but 3 classes were expected"),
    ],
)
def test_what_can_be_known_of_a_stream_is_checked_when_it_is_opened(data, server, tmp_path, name, options, message):
    write_shard(tmp_path / "empty.tar", [])
    write_shard(tmp_path / "plain.tar", [("a.png", encoded(1))])
    with pytest.raises(DataError, match=message):
        open_data(f"wds:{server[0]}/{name}", **{"split": "train", "num_classes": 3, **options})


def test_a_loader_that_cannot_work_with_a_stream_is_refused(data, server):
    unknown = open_data(f"wds:{server[0]}/pets-train-{{0..4}}.tar", "train", num_classes=3)
    for source, options, message in (
        (unknown, {}, r"needs the number of images: open_data\(\.\.\., length=\.\.\.\)"),
        (data, {"world": 6, "batch_size": 6}, r"5 shards are too few for world=6 processes"),
        (data, {"drop_last": False}, "full batches only"),
        (data, {"batch_size": 21}, "20 images do not fill one batch of 21"),
    ):
        with pytest.raises(DataError, match=message):
            loader_of(source, **options)
    with pytest.raises(DataError, match=r"must start at batch 0, got start=1"):
        loader_of(data, train=False).epoch(0, start=1)
    with pytest.raises(TypeError, match="number of batches is not known"):
        len(loader_of(data, train=False))


def test_a_run_trains_and_is_evaluated_on_shards(server, tmp_path):
    for split, count in (("train", 8), ("val", 3)):
        write_shard(tmp_path / f"pets-{split}-0.tar", members(range(count)))
    source = f"wds:{server[0]}/pets-{{split}}-0.tar"
    config = small_config(source, "data.num_classes=3", "data.epoch_images=8", "schedule.epochs=1")
    outcome = Run(override(config, ["schedule.warmup_epochs=0"]), tmp_path / "run").train()
    assert outcome.history[0]["val"]["images"] == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_wrong_label_that_a_worker_meets_is_said_in_its_own_words(server, tmp_path, workers):
    write_shard(tmp_path / "pets-train-0.tar", members(range(8)))
    data = open_data(f"wds:{server[0]}/pets-train-0.tar", "train", num_classes=2, length=8)
    with pytest.raises(DataError, match=r"^http.*: label 2 is outside 0..1.$"):
        list(loader_of(data, workers=workers).epoch(0))
