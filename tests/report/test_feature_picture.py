"""``foveate show features``: the right features, in the right places."""

import pytest
import timm
import torch
from PIL import Image

import foveate as fv
from foveate.cli.main import main
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.report.drawing import RAMP, enlarged, heat, picture_of, rescaled
from foveate.report.pictures import PictureRequest
from foveate.report.pictures.features import MAP_WIDTH, chosen_blocks, directions, feature_maps, features, strip


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    pixels = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture_of(pixels).save(path)
    return path


def hvt(**options):
    torch.manual_seed(0)
    return timm.create_model("hvt_tiny", num_heads=1, depth=4, img_size=64, patch_size=8, **options).eval()


def test_pooled_features_are_spread_back_to_the_grid():
    model, images = hvt(stages=2), torch.randn(1, 3, 64, 64)
    maps = feature_maps(model, images, [0, -1])
    assert list(maps) == ["block 0: 31 tokens", "block 3: 15 tokens"]
    with torch.no_grad():
        dense = fv.features(model, images, 3)[0]
    last = model.norm(maps["block 3: 15 tokens"].permute(1, 2, 0)).permute(2, 0, 1)
    torch.testing.assert_close(last, dense)


def test_blocks_are_chosen_or_asked_for():
    assert chosen_blocks(None, 12) == [0, 4, 8, 11]
    assert chosen_blocks([-1, 2], 12) == [11, 2]
    assert chosen_blocks(None, 1) == [0]
    with pytest.raises(ValueError, match="The model has 12 blocks"):
        chosen_blocks([12], 12)


def test_the_strongest_channels_come_first():
    found = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(2)) * 0.01
    found[3] += torch.linspace(-3, 3, 16).view(4, 4)
    captions = [panel.caption for panel in strip("block 0", found, 2).panels]
    assert captions[:2] == ["3 main directions", "channel 3"]
    assert len(captions) == 3


def test_colours_run_from_dark_to_bright():
    values = torch.arange(101.0).view(1, 101)
    colours = heat(values)
    assert tuple(colours[:, 0, 0].tolist()) == RAMP[0]
    assert tuple(colours[:, 0, -1].tolist()) == RAMP[-1]
    weights = torch.tensor([0.2126, 0.7152, 0.0722]).view(3, 1, 1)
    brightness = (colours.float() * weights).sum(dim=0).flatten()
    assert (brightness.diff() >= -1e-3).all()
    assert torch.equal(heat(torch.zeros(2, 2)), heat(torch.ones(2, 2)))  # a flat map is a flat colour, no NaN
    assert rescaled(torch.tensor([0.0, 1.0])).tolist() == [0, 1]


def test_directions_do_not_depend_on_the_sign_of_an_axis():
    normed = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(1))
    again = directions(normed.double()).float()
    assert (directions(normed).float() - again).abs().max() <= 1


def test_one_square_per_patch():
    pixels = torch.randint(0, 256, (3, 2, 4), dtype=torch.uint8)
    large = enlarged(pixels, 40)
    assert large.size == (40, 20)
    assert large.getpixel((5, 5)) == tuple(pixels[:, 0, 0].tolist())
    assert large.getpixel((35, 15)) == tuple(pixels[:, 1, 3].tolist())


def test_the_sheet_holds_a_row_per_block_and_a_column_per_channel(photo):
    request = PictureRequest([photo], "hvt", [0, 2], 3)
    one, two = features(hvt(), request), features(hvt(), PictureRequest([photo, photo], "hvt", [0, 2], 3))
    assert two.height == 2 * one.height
    wider = features(hvt(), PictureRequest([photo], "hvt", [0, 2], 4))
    assert wider.width - one.width == MAP_WIDTH + 12
    taller = features(hvt(), PictureRequest([photo], "hvt", [0, 1, 2, 3], 3))
    assert taller.height > one.height


def test_the_command_writes_a_png(photo, tmp_path, capsys):
    out = tmp_path / "out.png"
    command = ["show", "features", "hvt_tiny", str(photo), "--at", "0", "11", "--channels", "2", "--out", str(out)]
    assert main(command) == 0
    assert "Wrote" in capsys.readouterr().out
    with Image.open(out) as drawn:
        assert drawn.format == "PNG"
    for broken, words in ((tmp_path / "none.jpg", "There is no image"), (out.with_suffix(".bin"), "cannot be read")):
        if "read" in words:
            broken.write_bytes(b"not an image")
        assert main(["show", "features", "hvt_tiny", str(broken), "--out", str(out)]) == 2
        assert words in capsys.readouterr().err


def test_a_model_sees_its_own_size_and_colours(photo):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, patch_size=8, depth=1)
    wanted = Preprocessing.of(model)
    assert (wanted.height, wanted.width, wanted.mean) == (64, 64, (0.5, 0.5, 0.5))
    pixels = wanted.crop(open_image(photo))
    assert (pixels.shape, pixels.dtype) == ((3, 64, 64), torch.uint8)
    torch.testing.assert_close(wanted.normalise(pixels), wanted.evaluation()(open_image(photo)))


def test_photographs_are_turned_as_the_camera_says(tmp_path):
    image, exif = Image.new("RGBA", (20, 10), "red"), Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    assert (open_image(tmp_path / "turned.png").size, open_image(tmp_path / "turned.png").mode) == ((10, 20), "RGB")
