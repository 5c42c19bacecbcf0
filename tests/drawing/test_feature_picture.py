"""``foveate show features``: the right features, in the right places."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import foveate as fv
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.drawing.features import MAP_WIDTH, directions, feature_maps, feature_strip, features
from foveate.drawing.inputs import choose_blocks
from foveate.drawing.pixels import enlarge, heat, rescale
from foveate.drawing.sheets import Panel, Strip, sheet
from foveate.drawing.style import GAP, LINE, RAMP
from foveate.drawing.tokens import tokens
from foveate_cli.main import main


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
    assert choose_blocks(None, 12) == [0, 4, 8, 11]
    assert choose_blocks([-1, 2], 12) == [11, 2]
    assert choose_blocks(None, 1) == [0]
    with pytest.raises(ValueError, match="The model has 12 blocks"):
        choose_blocks([12], 12)


def test_a_model_is_drawn_in_its_own_number_format(photo):
    whole, half = (features(model, [photo], name="hvt", blocks=[0], channels=1) for model in (hvt(), hvt().bfloat16()))
    assert whole.size == half.size


def test_the_exact_last_block_is_not_among_the_blocks_chosen(photo):
    keys = fv.FreeSlice(fv.methods.Site.KV)
    for method, schedule in ((fv.ToMe(), fv.KeepRate(0.5, blocks=(1,))), (keys, fv.Keep({3: 9}))):
        torch.manual_seed(0)
        model = timm.create_model("vit_tiny_patch16_224", num_heads=1, embed_dim=64, depth=4, img_size=64)
        fv.reduce_(model, method, schedule, exact_last_block=True)
        headings = list(feature_maps(model, torch.randn(1, 3, 64, 64), None))
        assert [int(heading.split()[1][:-1]) for heading in headings] == [0, 1, 2]
        with pytest.raises(ValueError, match="exact_last_block"):
            features(model, [photo], name="vit", blocks=[3], channels=1)


def test_a_picture_is_drawn_without_dropout_and_leaves_the_mode_as_it_was(photo):
    model = hvt(stages=0, drop_path_rate=0.5, proj_drop_rate=0.5).train()
    fv.reduce_(model, fv.ToMe(), fv.RemovePerBlock(9))  # which tokens it merges hangs on what dropout left
    model.norm.eval()
    before = [module.training for module in model.modules()]
    for draw in (features, tokens):
        one, again = (draw(model, [photo], blocks=[3]) for _ in range(2))
        assert one.tobytes() == again.tobytes()
        assert [module.training for module in model.modules()] == before


def test_words_stay_on_the_sheet():
    blank = Image.new("RGB", (200, 50), "white")
    strips = [Strip("block 0", [Panel(blank, "channel 1")])]
    words, name = "many words that would not fit into one line of this sheet " * 3, "a_name_far_too_long_" * 5
    short, long = sheet("t", Panel(blank, "n"), strips), sheet(words, Panel(blank, name), strips)
    assert short.width == long.width
    assert (long.height - short.height) // LINE >= 2
    top = long.height - short.height + 2 * LINE + 2 * GAP + 50  # below both pictures: name and caption
    ink = (np.array(long.convert("L")) < 200)[top:].any(axis=0).nonzero()[0]
    left = ink[ink < 200 + 2 * GAP]
    assert GAP + 180 < left.max() < GAP + 200
    assert (np.array(long.convert("L")) < 200).any(axis=0).nonzero()[0].max() < long.width - GAP


def test_the_strongest_channels_come_first():
    found = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(2)) * 0.01
    found[3] += torch.linspace(-3, 3, 16).view(4, 4)
    captions = [panel.caption for panel in feature_strip("block 0", found, 2).panels]
    assert captions[:2] == ["3 main directions", "channel 3"]
    assert len(captions) == 3


def test_colors_run_from_dark_to_bright():
    values = torch.arange(101.0).view(1, 101)
    colors = heat(values)
    assert tuple(colors[:, 0, 0].tolist()) == RAMP[0]
    assert tuple(colors[:, 0, -1].tolist()) == RAMP[-1]
    weights = torch.tensor([0.2126, 0.7152, 0.0722]).view(3, 1, 1)
    brightness = (colors.float() * weights).sum(dim=0).flatten()
    assert (brightness.diff() >= -1e-3).all()
    assert torch.equal(heat(torch.zeros(2, 2)), heat(torch.ones(2, 2)))  # a flat map is a flat color, no NaN
    assert rescale(torch.tensor([0.0, 1.0])).tolist() == [0, 1]


def test_directions_do_not_depend_on_the_sign_of_an_axis():
    normed = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(1))
    again = directions(normed.double()).float()
    assert (directions(normed).float() - again).abs().max() <= 1


def test_directions_show_what_differs_and_not_what_all_share():
    """Tokens that differ in three ways, far from zero: each way is one color, from none to all of it."""
    row, column = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    ways = torch.stack([9 * row, 3 * column, (row + column) % 2])
    normed = torch.zeros(4, 4, 8)
    normed[..., :3] = ways.permute(1, 2, 0)
    normed += 100 * torch.randn(8, generator=torch.Generator().manual_seed(3))
    colors = directions(normed).float()
    for way, color in zip(ways, colors, strict=True):
        assert (color.min(), color.max()) == (0, 255)
        pair = torch.stack([way.flatten(), color.flatten()])
        assert torch.corrcoef(pair)[0, 1].abs() > 0.99


def test_one_square_per_patch():
    pixels = torch.randint(0, 256, (3, 2, 4), dtype=torch.uint8)
    large = enlarge(pixels, 40)
    assert large.size == (40, 20)
    assert large.getpixel((5, 5)) == tuple(pixels[:, 0, 0].tolist())
    assert large.getpixel((35, 15)) == tuple(pixels[:, 1, 3].tolist())


def test_the_sheet_holds_a_row_per_block_and_a_column_per_channel(photo):
    model, (two_blocks, four) = hvt(), ([0, 2], [0, 1, 2, 3])
    one, two = (features(model, [photo] * number, blocks=two_blocks, channels=3) for number in (1, 2))
    assert two.height == 2 * one.height
    wider = features(model, [photo], blocks=two_blocks, channels=4)
    assert wider.width - one.width == MAP_WIDTH + 12
    assert features(model, [photo], blocks=four, channels=3).height > one.height


def test_the_command_writes_a_png(photo, tmp_path, capsys):
    out, broken = tmp_path / "out.png", tmp_path / "broken.bin"
    command = ["show", "features", "test_vit", str(photo), "--at", "0", "-1", "--channels", "2", "--out", str(out)]
    assert main(command) == 0
    assert "Wrote" in capsys.readouterr().out
    with Image.open(out) as drawn:
        assert drawn.format == "PNG"
    broken.write_bytes(b"not an image")
    for path, words in ((tmp_path / "none.jpg", "There is no image"), (broken, "cannot be read")):
        assert main(["show", "features", "test_vit", str(path), "--out", str(out)]) == 2
        assert words in capsys.readouterr().err


def test_a_model_sees_its_own_size_and_colors(photo):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, patch_size=8, depth=1)
    wanted = Preprocessing.of(model)
    assert (wanted.height, wanted.width, wanted.mean) == (64, 64, (0.5, 0.5, 0.5))
    pixels = wanted.crop(open_image(photo))
    assert (pixels.shape, pixels.dtype) == ((3, 64, 64), torch.uint8)
    torch.testing.assert_close(wanted.normalize(pixels), wanted.evaluation()(open_image(photo)))


def test_photographs_are_turned_as_the_camera_says(tmp_path):
    image, exif = Image.new("RGBA", (20, 10), "red"), Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    assert (open_image(tmp_path / "turned.png").size, open_image(tmp_path / "turned.png").mode) == ((10, 20), "RGB")
