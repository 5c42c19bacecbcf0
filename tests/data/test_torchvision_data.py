"""Named sets of torchvision, from files as torchvision keeps them."""

import inspect
import struct

import numpy as np
import pytest
import torchvision
from PIL import Image

from foveate.data import BrokenImage, DataError, open_data
from foveate.data import torchvision_sets as subject
from foveate.data.source import drawn_from


def write_idx(path, array):
    """The format of MNIST: a magic number, the sizes, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


@pytest.fixture
def root(tmp_path):
    for name, count in (("train", 4), ("t10k", 2)):
        place = tmp_path / "FashionMNIST" / "raw"
        write_idx(place / f"{name}-images-idx3-ubyte", np.arange(count)[:, None, None] * np.ones((1, 28, 28)) * 10)
        write_idx(place / f"{name}-labels-idx1-ubyte", np.arange(count) % 10)
    return tmp_path


def test_a_set_is_read_with_its_labels_and_names(root):
    data = open_data("torchvision:FashionMNIST", "train", root=root)
    assert (len(data), data.num_classes, data.labeled, data.classes[9]) == (4, 10, True, "Ankle boot")
    sample = data.read(3)
    assert (sample.target, sample.name, sample.image.mode) == (3, "torchvision:FashionMNIST/train[3]", "RGB")
    assert sample.image.getpixel((5, 5)) == (30, 30, 30)
    val = open_data("torchvision:FashionMNIST", "val", root=root, classes=data.classes)
    assert (len(val), val.split) == (2, "test")


def test_nothing_is_downloaded_unless_asked_for(tmp_path, monkeypatch):
    asked = []

    class Recorder:
        classes = ("a", ("b", "c"))

        def __init__(self, root, download, **options):
            asked.append((download, options))

    monkeypatch.setattr(torchvision.datasets, "Imagenette", Recorder)
    data = open_data("torchvision:Imagenette", "val", root=tmp_path)
    assert data.classes == ("a", "b, c")
    open_data("torchvision:Imagenette", "train", root=tmp_path, download=True)
    assert asked == [(False, {"split": "val"}), (True, {"split": "train"})]


def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"cannot be opened in .*To download it, set download=True"):
        open_data("torchvision:CIFAR100", "train", root=tmp_path)


def test_a_broken_image_is_known_by_its_number(tmp_path, monkeypatch):
    class OneBroken:
        classes = ("a",)

        def __init__(self, root, download, **options): ...

        def __getitem__(self, index):
            if index == 1:
                raise OSError("truncated")
            return Image.new("L", (2, 2)), 0

    monkeypatch.setattr(torchvision.datasets, "Food101", OneBroken)
    data = open_data("torchvision:Food101", "train", root=tmp_path)
    assert data.read(0).target == 0
    with pytest.raises(BrokenImage, match=r"Food101/train\[1\] cannot be read: OSError: truncated"):
        data.read(1)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("torchvision:Nonsense", {"root": "x"}, r"not a supported dataset\. Supported: CIFAR10, CIFAR100"),
        ("torchvision:CIFAR10", {}, r"needs root, the folder"),
        ("torchvision:OxfordIIITPet", {"root": "x", "split": "extra"}, r"no split 'extra'; it has test, trainval"),
        ("torchvision:EuroSAT", {"root": "x", "split": "val"}, r"not divided into splits"),
    ],
)
def test_a_wrong_request_is_refused(spec, options, message):
    with pytest.raises(DataError, match=message):
        open_data(spec, **{"split": "train", **options})


def test_other_classes_are_refused(root):
    names = list(open_data("torchvision:FashionMNIST", "train", root=root).classes)
    for options, message in (
        ({"num_classes": 11}, "has 10 classes, but num_classes=11"),
        ({"classes": [*names[:9], "eel"]}, r"it lacks eel and adds Ankle boot"),
        ({"classes": names[::-1]}, "in another order"),
    ):
        with pytest.raises(DataError, match=message):
            open_data("torchvision:FashionMNIST", "train", root=root, **options)


@pytest.mark.parametrize("name", subject.KNOWN)
def test_every_known_set_takes_the_words_it_is_given(name):
    """Splits are torchvision's own words, and the constructor has the parameters we name."""
    built = getattr(torchvision.datasets, name)
    parameters = inspect.signature(built.__init__).parameters
    _, options = subject._split(name, "train", name)
    assert {"root", "download", *options} <= set(parameters)
    for split in subject.BY_NAME.get(name, ()):
        assert f'"{split}"' in inspect.getsource(built), split


def test_some_images_are_drawn_with_their_labels(root):
    data = open_data("torchvision:FashionMNIST", "train", root=root)
    some = drawn_from(data, 2, seed=0)
    assert (len(some), some.labeled, some.num_classes) == (2, True, 10)
    for index in range(2):
        sample = some.read(index)
        assert sample.name == some.pictures.name(index) == f"torchvision:FashionMNIST/train[{sample.target}]"
        assert sample.image.getpixel((5, 5)) == (10 * sample.target,) * 3
    assert drawn_from(data, 9, seed=0) is data
