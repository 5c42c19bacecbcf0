"""Small folders as people have them: parts that are not classes, HEIC, ImageNet's names, no splits."""

import io
import sys
from collections import Counter

import pytest
from pictures import encoded
from PIL import Image, UnidentifiedImageError, features

from foveate.data import BrokenImage, DataError, open_data
from foveate.data.division import divide
from foveate.data.images import decode
from foveate.data.labels import imagenet_folders
from foveate.data.preprocessing import open_image
from foveate.tasks import Classification


@pytest.fixture
def folder(tmp_path):
    """Write images of classes below a folder."""

    def folder(**counts):
        for name, count in counts.items():
            place = tmp_path / "photos" / name
            place.mkdir(parents=True)
            for number in range(count):
                (place / f"{number:03}.png").write_bytes(encoded(number))
        return tmp_path / "photos"

    return folder


# -- folders that are not classes


@pytest.mark.parametrize("names", [("images", "labels"), ("Images",), ("JPEGImages", "Annotations", "masks")])
def test_parts_of_a_dataset_are_not_taken_for_classes(folder, names):
    place = folder(**dict.fromkeys(names, 2))
    with pytest.raises(DataError, match=r"look like parts of a dataset.*[iI]mages; for masks.*--classes FILE"):
        open_data(place, "all")


def test_they_are_classes_where_the_user_names_them_or_beside_others(folder):
    place = folder(images=2, masks=3)
    assert open_data(place, "all", classes=["images", "masks"]).labels.tolist() == [0, 0, 1, 1, 1]
    (place / "cats").mkdir()
    (place / "cats" / "0.png").write_bytes(encoded(0))
    assert open_data(place, "all").classes == ("cats", "images", "masks")


def test_labels_in_a_csv_beside_the_images_are_named_with_the_line_that_uses_them(folder):
    place = folder(images=3)
    (place / "notes.csv").write_text("a,b\n1,2\n")
    (place / "labels.csv").write_text("file,label\n000.png,cat\n001.png,dog\n")
    with pytest.raises(DataError, match=r"For the labels in labels\.csv, use --data \S+/photos/labels\.csv"):
        open_data(place, "all")
    found = open_data(place / "labels.csv", "all")  # whose paths are those below images/
    assert found.classes == ("cat", "dog")
    assert found.read(1).image.size == open_data(place / "images", "all").read(1).image.size
    (place / "labels.csv").write_text("file,label\nimages/000.png,cat\nimages/001.png,dog\n")
    assert len(open_data(place / "labels.csv", "all")) == 2
    (place / "labels.csv").write_text("filename,class\n000.png,cat\n")
    with pytest.raises(DataError, match=r"it has filename, class\. Name the column of paths 'file' and .* 'label'"):
        open_data(place / "labels.csv", "all")


# -- HEIC and AVIF


def heic():
    pillow_heif = pytest.importorskip("pillow_heif")
    content = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (64, 64), (200, 30, 30))).save(content, quality=90)
    return content.getvalue()


def test_heic_is_read_where_its_plugin_is_installed(folder):
    place = folder(cats=1)
    (place / "cats" / "phone.HEIC").write_bytes(heic())
    data = open_data(place, "all")
    assert len(data) == 2
    red, green, _ = data.read(1).image.getpixel((32, 32))
    assert (red > 150, green < 80) == (True, True)
    assert open_image(place / "cats" / "phone.HEIC").size == (64, 64)


@pytest.mark.parametrize(
    ("brand", "module", "package"),
    [(b"heic", "pillow_heif", "pillow-heif"), (b"avif", "pillow_avif", "pillow-avif-plugin")],
)
def test_a_missing_plugin_is_named(folder, monkeypatch, brand, module, package):
    place = folder(cats=1)
    (place / "cats" / "phone.heic").write_bytes(b"\0\0\0\x18ftyp" + brand + b"\0" * 40)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(Image, "open", _unidentified)
    with pytest.raises(BrokenImage, match=f"need a plugin of Pillow: pip install {package}"):
        open_data(place, "all").read(1)


def _unidentified(*_):
    raise UnidentifiedImageError("unknown")


@pytest.mark.skipif(not features.check("avif"), reason="Pillow was built without AVIF")
def test_avif_is_read():
    content = io.BytesIO()
    Image.new("RGB", (16, 16), (10, 200, 10)).save(content, "AVIF")
    assert decode(content.getvalue()).size == (16, 16)


# -- ImageNet's folder names


def test_wordnet_ids_are_classes_of_a_1000_class_model(folder):
    place = folder(n03888257=1, n01440764=2)
    opened = Classification(num_classes=1000).open_matching(str(place))
    assert opened.mismatch == ""
    assert opened.data.labels.tolist() == [0, 0, 701]  # tench, parachute
    assert len(opened.task.classes) == 1000


@pytest.mark.parametrize(
    ("found", "count"), [(("n01440764",), 10), (("tench",), 1000), (("n99999999",), 1000), (None, 1000), ((), 1000)]
)
def test_other_names_and_models_are_not_matched(found, count):
    assert imagenet_folders(found, count) is None


# -- dividing what has no splits


def labels_of(data):
    return Counter(data.labels.tolist())


def test_a_share_of_every_class_is_held_out_the_same_for_a_seed(folder):
    data = open_data(folder(a=50, b=10, c=2), "train")
    train, val = divide(data, 0.2, seed=3, where="photos")
    assert labels_of(val) == {0: 10, 1: 2, 2: 1}
    assert labels_of(train) == {0: 40, 1: 8, 2: 1}
    names = [{part.read(i).name for i in range(len(part))} for part in (train, val)]
    assert len(names[0] | names[1]) == 62
    again, other = divide(data, 0.2, 3, "photos")[1], divide(data, 0.2, 4, "photos")[1]
    assert again.numbers == val.numbers != other.numbers


def test_a_class_with_one_image_stays_in_training(folder):
    train, val = divide(open_data(folder(a=5, b=1), "train"), 0.5, 0, "photos")
    assert labels_of(train)[1] == 1
    assert labels_of(val) == {0: 2}


def test_one_image_per_class_cannot_be_divided(folder):
    with pytest.raises(DataError, match=r"one image per class.*Leave out data\.val_share"):
        divide(open_data(folder(a=1, b=1), "train"), 0.5, 0, "photos")
