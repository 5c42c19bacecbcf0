import pytest
from pictures import encoded


@pytest.fixture
def write():
    def write(path, number=0):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
        return path

    return write


@pytest.fixture
def folder(tmp_path, write):
    """train: 3 cats (0..2), 2 dogs (3, 4); val: 1 cat (5), 2 dogs (6, 7)."""
    counts = {"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 2}
    number = 0
    for name, count in counts.items():
        for i in range(count):
            write(tmp_path / "pets" / name / f"{i}.png", number)
            number += 1
    return tmp_path / "pets"
