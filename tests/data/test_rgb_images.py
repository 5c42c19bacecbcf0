"""Whatever way an image is stored, it comes out as a viewer would show it, in eight bits."""

import io

import numpy as np
import pytest
from PIL import Image

from foveate.data.images import ORIENTATION, UPRIGHT, as_rgb, is_image


def through(image, kind, **options):
    """The image after a round through a file."""
    content = io.BytesIO()
    image.save(content, kind, **options)
    return as_rgb(Image.open(io.BytesIO(content.getvalue())))


def pixel(image, at=(0, 0)):
    assert image.mode == "RGB"
    return image.getpixel(at)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_an_image_comes_out_upright(kind, orientation):
    """The picture is wide and red on its left; it is stored turned, with a tag that says so."""
    upright = Image.new("RGB", (32, 16), "blue")
    upright.paste("red", (0, 0, 16, 16))
    undo = {1: 0, 3: 180, 6: 90, 8: 270}[orientation]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    found = through(upright.rotate(undo, expand=True), kind, exif=exif)
    assert found.size == (32, 16)
    assert pixel(found, (3, 8))[0] > 200
    assert pixel(found, (28, 8))[2] > 200


def test_mirrored_orientations_match_what_pillow_does():
    from PIL import ImageOps

    stored = Image.fromarray(np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8))
    for orientation in UPRIGHT:
        stored.getexif()[ORIENTATION] = orientation
        assert as_rgb(stored).tobytes() == ImageOps.exif_transpose(stored).tobytes(), orientation


def test_damaged_exif_does_not_break_an_image(monkeypatch):
    assert through(Image.new("RGB", (8, 8), "red"), "JPEG", exif=b"Exif\x00\x00garbage").size == (8, 8)

    def fails(self):  # as older versions of Pillow do
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(Image.Image, "getexif", fails)
    assert as_rgb(Image.new("RGB", (8, 8), "red")).size == (8, 8)


def test_transparency_is_seen_on_white():
    assert pixel(through(Image.new("RGBA", (2, 2), (9, 9, 9, 0)), "PNG")) == (255, 255, 255)
    assert pixel(through(Image.new("LA", (2, 2), (0, 51)), "PNG")) == (204, 204, 204)


def test_a_palette_keeps_its_colors_and_its_transparency():
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putpixel((1, 0), 1)
    assert [pixel(through(picture, "PNG"), (x, 0)) for x in (0, 1)] == [(10, 20, 30), (200, 100, 50)]
    found = through(picture, "PNG", transparency=0)
    assert [pixel(found, (x, 0)) for x in (0, 1)] == [(255, 255, 255), (200, 100, 50)]


@pytest.mark.parametrize(("deep", "flat"), [(0, 0), (257, 1), (32896, 128), (65535, 255), (1000, 4)])
def test_sixteen_bits_are_scaled_not_cut_off(deep, flat):
    picture = Image.fromarray(np.full((2, 2), deep, dtype=np.uint16))
    assert pixel(through(picture, "PNG")) == (flat, flat, flat)
    assert pixel(through(picture, "TIFF")) == (flat, flat, flat)


def test_other_modes_become_rgb():
    assert pixel(through(Image.new("L", (2, 2), 77), "PNG")) == (77, 77, 77)
    assert pixel(through(Image.new("1", (2, 2), 1), "PNG")) == (255, 255, 255)
    assert pixel(through(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF")) == (255, 0, 0)
    red, green, blue = pixel(through(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize(("mode", "value", "text"), [("F", 0.5, "unknown range"), ("I", 70000, "more than 16 bits")])
def test_numbers_whose_range_is_unknown_are_refused(mode, value, text):
    with pytest.raises(ValueError, match=text):
        as_rgb(Image.new(mode, (2, 2), value))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.jpg", True), ("b/A.JPEG", True), ("x.webp", True), ("._a.jpg", False), ("b/.a.png", False), ("a.txt", False)],
)
def test_which_files_are_images(name, expected):
    assert is_image(name) is expected
