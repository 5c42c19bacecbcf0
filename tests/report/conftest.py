import pytest

from comparing import pretended, write_picture
from foveate.report.compare import maps, run
from zoo import CLASSES


@pytest.fixture
def no_clock_and_no_gallery(monkeypatch, request):
    """Token maps have tests of their own; clocks are looked at where a test asks for them."""
    monkeypatch.setattr(maps, "_gallery", lambda *given: None)
    if "real_speed" not in request.fixturenames:
        monkeypatch.setattr(run, "measure_candidate", pretended)


@pytest.fixture
def real_speed():
    """Measure indeed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twenty noisy pictures in seven classes, as many as the small models predict."""
    place = tmp_path_factory.mktemp("pictures")
    for number in range(20):
        write_picture(place / f"kind{number % CLASSES}" / f"{number:02}.png", number)
    return place
