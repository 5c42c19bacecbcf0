"""Folders and CSV files: what is read, which split is meant, and what is refused before training."""

import pytest
from pictures import number_of

from foveate.data import DataError, open_data


def numbers(data):
    return [number_of(data.read(i).image) for i in range(len(data))]


def labels(data):
    return [data.read(i).target for i in range(len(data))]


def write_csv(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_folder_gives_classes_in_alphabetical_order(folder):
    data = open_data(folder, "train")
    assert (len(data), data.classes, data.num_classes, data.labeled) == (5, ("cat", "dog"), 2, True)
    assert numbers(data) == [0, 1, 2, 3, 4]
    assert labels(data) == [0, 0, 0, 1, 1]
    assert data.read(3).name == str(folder / "train" / "dog" / "0.png")


def test_classes_of_training_number_those_of_validation(folder):
    data = open_data(str(folder), "val", classes=("dog", "cat"))
    assert data.classes == ("dog", "cat")
    assert labels(data) == [1, 0, 0]


@pytest.mark.parametrize(
    ("there", "asked", "chosen"),
    [
        (("train", "val"), "val", "val"),
        (("train", "validation"), "val", "validation"),
        (("train", "valid", "test"), "validation", "valid"),
        (("train", "test"), "val", "test"),
        (("seg_train", "seg_test", "seg_pred"), "train", "seg_train"),
        (("seg_train", "seg_test", "seg_pred"), "val", "seg_test"),
        (("train2017", "val2017"), "train", "train2017"),
        (("train", "trainval", "test"), "train", "train"),
    ],
)
def test_a_split_goes_by_several_names(tmp_path, write, there, asked, chosen):
    for name in there:
        write(tmp_path / name / "cat" / "0.png")
    data = open_data(tmp_path, asked)
    assert data.split == chosen
    assert data.read(0).name == str(tmp_path / chosen / "cat" / "0.png")


def test_a_test_split_is_not_replaced_by_validation_data(folder):
    with pytest.raises(DataError, match=r"has no split 'test'; it has train, val\."):
        open_data(folder, "test")


def test_several_splits_that_could_be_meant_are_named(tmp_path, write):
    for name in ("old_val", "new_val", "train"):
        write(tmp_path / name / "cat" / "0.png")
    with pytest.raises(DataError, match=r"several splits for 'val': new_val, old_val\. Name one of them"):
        open_data(tmp_path, "val")
    assert open_data(tmp_path, "old_val").split == "old_val"


def test_a_folder_that_holds_itself_is_entered(tmp_path, write):
    for name in ("forest", "sea"):
        write(tmp_path / "seg_train" / "seg_train" / name / "0.png")
    assert open_data(tmp_path, "train").classes == ("forest", "sea")


def test_images_of_a_class_may_lie_deeper(tmp_path, write):
    write(tmp_path / "train" / "cat" / "images" / "b.png", 1)
    write(tmp_path / "train" / "cat" / "a.png", 0)
    assert numbers(open_data(tmp_path, "train")) == [0, 1]


def test_images_without_class_folders_are_unlabeled(tmp_path, write):
    for number in range(3):
        write(tmp_path / "photos" / f"{number}.png", number)
    (tmp_path / "photos" / "notes.txt").touch()
    (tmp_path / "photos" / "._0.png").touch()
    data = open_data(tmp_path / "photos", "train")
    assert (data.classes, data.num_classes, data.labeled, labels(data)) == (None, None, False, [-1, -1, -1])
    assert numbers(data) == [0, 1, 2]


def test_class_folders_without_splits_are_training_data_and_never_validation_data(folder):
    undivided = folder / "train"
    assert len(open_data(undivided, "train")) == len(open_data(undivided, "all")) == 5
    assert len(open_data(folder / "val", "val")) == len(open_data(folder / "val", "validation")) == 3
    with pytest.raises(DataError, match=r"not divided into splits, so it has no split 'val'.*--split all"):
        open_data(undivided, "val")


def test_an_empty_class_folder_is_an_error(folder):
    (folder / "val" / "eel").mkdir()
    with pytest.raises(DataError, match=r"class folders without images: eel\."):
        open_data(folder, "val")
    assert open_data(folder, "val", allow_empty_classes=True).num_classes == 3


def test_other_classes_than_in_training_are_an_error(folder):
    with pytest.raises(DataError, match=r"other classes than expected: it lacks eel and adds dog\."):
        open_data(folder, "val", classes=("cat", "eel"))
    with pytest.raises(DataError, match=r"it lacks eel\."):
        open_data(folder, "val", classes=("cat", "dog", "eel"))
    with pytest.raises(DataError, match=r"it adds dog\."):
        open_data(folder, "val", classes=("cat",))
    with pytest.raises(DataError, match=r"has 2 classes, but num_classes=3"):
        open_data(folder, "val", num_classes=3)


def test_a_folder_without_images_or_with_loose_ones_is_an_error(folder, tmp_path, write):
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none has no images\."):
        open_data(tmp_path / "none", "train")
    write(folder / "train" / "loose.png")
    with pytest.raises(DataError, match=r"class folders and also 1 images: loose\.png"):
        open_data(folder, "train")


def test_a_csv_with_numbers_finds_files_from_its_own_place(tmp_path, write):
    write(tmp_path / "data" / "a.png", 1)
    write(tmp_path / "data" / "sub" / "b.png", 2)
    path = write_csv(tmp_path / "data" / "labels.csv", "file,label,note", "sub/b.png,1,x", "a.png,0,y")
    data = open_data(path, "train")
    assert (numbers(data), labels(data), data.classes, data.num_classes) == ([2, 1], [1, 0], None, 2)
    assert data.read(0).name == str(tmp_path / "data" / "sub" / "b.png")


@pytest.fixture
def table(tmp_path, write):
    def table(*lines):
        for name in "abcd":
            write(tmp_path / f"{name}.png", ord(name))
        return write_csv(tmp_path / "table.csv", *lines)

    return table


def test_a_csv_with_names_numbers_them_over_all_its_splits(table):
    path = table("\ufefffile, label, split", "a.png, cat, train", "b.png, eel, val", "c.png, dog, train")
    train = open_data(path, "train", allow_empty_classes=True)
    assert (train.classes, labels(train)) == (("cat", "dog", "eel"), [0, 1])
    val = open_data(path, "validation")
    assert (val.classes, val.split, labels(val), numbers(val)) == (train.classes, "val", [2], [ord("b")])
    assert len(open_data(path, "all")) == 3


def test_a_csv_without_labels_is_unlabeled(table):
    data = open_data(table("file", "a.png", "b.png"), "train")
    assert (data.labeled, labels(data)) == (False, [-1, -1])


def test_names_that_look_like_numbers_are_names_where_classes_say_so(table):
    data = open_data(table("file,label", "a.png,10", "b.png,2"), "train", classes=("2", "10"))
    assert labels(data) == [1, 0]


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (("name,label", "a.png,1"), {}, r"no column 'file'; it has name, label"),
        (("file,label",), {}, r"has no rows"),
        (("file,label", "a.png,0", "b.png,"), {}, r"line 3: the column 'label' is empty"),
        (("file,label", "a.png,0", "b.png"), {}, r"line 3: the column 'label' is empty"),
        (("file,label", "a.png,0", "x.png,1", "y.png,1"), {}, r"2 of 3 files in .* do not exist: x.png, y.png"),
        (("file,label", "a.png,0", "b.png,-1"), {}, r"line 3: label -1 is outside 0..0"),
        (("file,label", "a.png,0", "b.png,2"), {"num_classes": 2}, r"line 3: label 2 is outside 0..1"),
        (("file,label", "a.png,0", "b.png,2"), {}, r"no image of 1 of its 3 classes: 1\..*allow_empty_classes"),
        (("file,label", "a.png,0", "b.png,1"), {"num_classes": 3}, r"no image of 1 of its 3 classes: 2\."),
        (("file,label", "a.png,0", "b.png,1.0"), {}, r"line 2: the label '0' .* Other labels are names"),
        (("file,label", "a.png,0.0", "b.png,1.0"), {}, r"line 2: the label '0.0' .* Write it without a decimal point"),
        (("file,label", "a.png,cat", "b.png,3"), {}, r"line 3: the label '3' is neither"),
        (("file,label", "a.png,cat", "b.png,cow"), {"classes": ("cat", "dog")}, r"line 3: 'cow' is not one of the 2"),
        (("file,label", "a.png,cat", "b.png,dog"), {"num_classes": 3}, r"has 2 classes, but num_classes=3"),
        (("file", "a.png"), {"classes": ("cat",)}, r"no column 'label', but 1 classes were expected"),
        (("file,label,split", "a.png,0,train"), {"split": "val"}, r"has no split 'val'; it has train"),
        (("file,label", "a.png,0"), {"split": "val"}, r"not divided into splits"),
    ],
)
def test_a_wrong_csv_says_where_it_is_wrong(table, lines, options, message):
    with pytest.raises(DataError, match=message):
        open_data(table(*lines), **{"split": "train", **options})


def test_a_csv_in_another_encoding_is_named(tmp_path):
    (tmp_path / "old.csv").write_bytes("file,label\ncafé.jpg,0\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"old\.csv is not UTF-8 text"):
        open_data(tmp_path / "old.csv", "train")


def test_a_class_without_images_may_be_missing_from_evaluation(table):
    path = table("file,label,split", "a.png,0,train", "b.png,1,train", "c.png,1,val")
    assert open_data(path, "val").num_classes == 2


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("nowhere", {}, r"nowhere does not exist\. Data can be a folder, .*, wds:PATTERN, torchvision:NAME or scenes:"),
        ("nowhere.csv", {}, r"There is no file nowhere\.csv"),
        ("s3:bucket", {}, r"s3:bucket does not exist\. Data can be"),
        (".", {"root": "x"}, r"does not take root, which is for torchvision: data"),
        ("hf:x", {"length": 5}, r"does not take length, which is for wds: data"),
        (".", {"num_classes": 0}, r"num_classes must be at least 1, got 0"),
        (".", {"classes": ("a", "b"), "num_classes": 3}, r"num_classes=3 but classes has 2 names"),
        (".", {"classes": ("a", "b", "a")}, r"classes has repeated names: a\."),
    ],
)
def test_a_wrong_request_says_what_is_known(spec, options, message):
    with pytest.raises(DataError, match=message):
        open_data(spec, "train", **options)


def test_a_file_that_is_no_data_is_refused(tmp_path):
    (tmp_path / "x.json").touch()
    with pytest.raises(DataError, match=r"neither a folder nor a \.csv file"):
        open_data(tmp_path / "x.json", "train")


def test_real_folders_and_labels_open(assets):
    train = open_data(assets / "imagenette", "train")
    val = open_data(assets / "imagenette", "validation", classes=train.classes)
    assert (len(train), len(val), train.num_classes) == (4500, 600, 10)
    photographs = open_data(assets / "imagenet_dev" / "labels.csv", "all", num_classes=1000)
    assert len(photographs) == 500
    assert photographs.read(0).target == 326


def test_a_link_back_is_walked_once(tmp_path, write):
    for number in range(3):
        write(tmp_path / "train" / "cats" / f"{number}.png", number)
        write(tmp_path / "train" / "dogs" / f"{number}.png", number)
    (tmp_path / "train" / "cats" / "again").symlink_to(tmp_path / "train" / "cats", target_is_directory=True)
    (tmp_path / "train" / "dogs" / "up").symlink_to(tmp_path / "train" / "dogs", target_is_directory=True)
    (tmp_path / "train" / "dogs" / "up2").symlink_to(tmp_path / "train" / "dogs" / "up", target_is_directory=True)
    assert len(open_data(tmp_path, "train")) == 6
