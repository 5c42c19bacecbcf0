"""Broken images: named once, counted, left out or replaced, and an error when they are too many."""

import io
import struct
import warnings
import zlib

import pytest
from pictures import encoded, number_of, plain
from PIL import Image

from foveate.data import BrokenImage, DataError, Loader, open_data
from foveate.data.broken import BrokenCount

COUNT = 20


@pytest.fixture
def photos(tmp_path):
    """Twenty pictures; those with a number in ``broken`` cannot be read."""

    def photos(*broken, count=COUNT):
        for old in tmp_path.iterdir():
            old.unlink()
        for number in range(count):
            content = b"no image" if number in broken else encoded(number)
            (tmp_path / f"{number:03}.png").write_bytes(content)
        return open_data(tmp_path, "train")

    return photos


def ids(loader, epoch=0, start=0):
    return [[number_of(image) for image in batch.images] for batch in loader.epoch(epoch, start)]


def loader_of(data, **options):
    return Loader(data, plain, **{"batch_size": 5, "seed": 1, "train": True, "max_broken": 0.2, **options})


@pytest.mark.parametrize("workers", [0, 2])
def test_in_training_the_next_readable_image_stands_in(photos, workers):
    usual = ids(loader_of(photos()))
    with pytest.warns(UserWarning, match="is replaced by another image"):
        found = ids(loader_of(photos(3, 4, 19), workers=workers))
    stands_in = {3: 5, 4: 5, 19: 0}
    assert found == [[stands_in.get(number, number) for number in batch] for batch in usual]


@pytest.mark.parametrize("workers", [0, 2])
def test_in_evaluation_a_broken_image_is_left_out(photos, workers):
    loader = loader_of(photos(3, 19), train=False, workers=workers)
    with pytest.warns(UserWarning, match="is left out"):
        assert ids(loader) == [[0, 1, 2, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18]]


def test_a_batch_without_a_readable_image_is_passed_over(photos):
    loader = loader_of(photos(4, 5), batch_size=2, train=False)
    with pytest.warns(UserWarning, match="is left out"):
        assert ids(loader)[:3] == [[0, 1], [2, 3], [6, 7]]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_is_warned_of_once_by_name_and_counted(photos, workers):
    loader = loader_of(photos(3, 7), workers=workers)
    assert loader.broken == 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(3):
            ids(loader, epoch)
    texts = sorted(str(warning.message) for warning in caught)
    assert len(texts) == 2
    assert (
        "003.png cannot be read and is replaced by another image: Pillow does not recognize its image format"
        in texts[0]
    )
    assert "007.png" in texts[1]
    assert loader.broken == 2
    assert sorted(name[-7:] for name in loader.broken_names) == ["003.png", "007.png"]


def test_batches_say_what_was_broken(photos):
    with pytest.warns(UserWarning, match="cannot be read"):
        batches = list(loader_of(photos(3), train=False).epoch(0))
    assert [[image.name[-7:] for image in batch.broken] for batch in batches] == [["003.png"], [], [], []]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_more_than_allowed_stops_with_their_names(photos, train, workers):
    allowed = loader_of(photos(3, 7, 8, 11), max_broken=0.2, train=train, workers=workers)
    assert sum(map(len, ids(allowed))) == (20 if train else 16)
    loader = loader_of(photos(3, 7, 8, 11, 13), max_broken=0.2, train=train, workers=workers)
    words = r"5 broken images of 20 are more than max_broken=0\.2 allows: .*the first: Pillow does not.*raise max_br"
    with pytest.raises(DataError, match=words):
        ids(loader)


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_a_few_broken_images_stop_neither_a_large_set_nor_a_small_one(photos):
    assert len(ids(loader_of(photos(0, count=81), max_broken=0.01, train=False))) == 17
    assert sum(map(len, ids(loader_of(photos(0, 1, 2), max_broken=0.01, train=False)))) == 17
    with pytest.raises(DataError, match="4 broken images of 20"):
        ids(loader_of(photos(0, 1, 2, 3), max_broken=0.01, train=False))
    with pytest.raises(DataError, match="1 broken images of 4"):  # a quarter is not a few
        ids(loader_of(photos(0, count=4), max_broken=0.01, train=False, batch_size=2))


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_none_is_allowed_where_none_is_said(photos):
    with pytest.raises(DataError, match="max_broken=0 allows"):
        ids(loader_of(photos(5), max_broken=0.0))


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_a_rank_of_an_evaluation_counts_against_its_own_share(photos):
    data = photos(0, 2, 4)
    assert len(ids(loader_of(data, train=False, rank=1, world=2, batch_size=4))) == 5
    with pytest.raises(DataError, match="3 broken images of 10"):
        ids(loader_of(data, train=False, rank=0, world=2, batch_size=4))


@pytest.mark.filterwarnings("ignore:.*cannot be read")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_set_of_which_nothing_can_be_read_is_an_error_even_if_all_may_be_broken(photos, workers):
    with pytest.raises(DataError, match="None of the 20 images can be read"):
        ids(loader_of(photos(*range(COUNT)), max_broken=1.0, workers=workers))


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_the_search_for_a_stand_in_ends_when_too_many_are_broken(photos, monkeypatch):
    data = photos(*range(COUNT))
    tried = []
    monkeypatch.setattr(type(data.pictures), "open", lambda self, index: tried.append(index))
    with pytest.raises(DataError, match="4 broken images of 20"):
        ids(loader_of(data, batch_size=1, max_broken=0.1))
    assert len(tried) == 4


def cut_off(path):
    content = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(content, "JPEG")
    path.write_bytes(content.getvalue()[: len(content.getvalue()) // 2])


def bomb(path):
    """The head of a PNG that says it has more pixels than Pillow allows; nothing behind it."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    side = int((2 * Image.MAX_IMAGE_PIXELS) ** 0.5) + 1
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.write_bytes(b""), "Pillow does not recognize its image format"),
        (lambda path: path.write_bytes(b"<html>not found</html>"), "Pillow does not recognize its image format"),
        (cut_off, "OSError: image file is truncated"),
        (bomb, "DecompressionBombError"),
        (lambda path: path.unlink(), "FileNotFoundError"),
    ],
)
def test_every_way_to_be_broken_has_a_name_and_a_reason(photos, tmp_path, harm, reason):
    data = photos()
    harm(tmp_path / "003.png")
    with pytest.raises(BrokenImage, match=rf"003\.png cannot be read: .*({reason})"):
        data.read(3)
    assert number_of(data.read(4).image) == 4


def test_a_stream_of_unknown_length_is_judged_late():
    count = BrokenCount(0.01, None, "is left out")
    count.begin()
    with pytest.warns(UserWarning, match="a cannot be read and is left out: why"):
        count.add(3, [BrokenImage("a", "why")])  # 1 of 4 so far, which says little
    with pytest.raises(DataError, match="1 broken images of 4 are more than"):
        count.finish()
    count.begin()
    count.add(99, [])
    count.add(1, [BrokenImage("a", "why")])
    count.finish()
