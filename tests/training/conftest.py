import pytest

from small_runs import make_images


@pytest.fixture(scope="session")
def images_folder(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))
