"""``foveate show tokens``: every patch is drawn as what became of it."""

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from foveate.adapters import Trace
from foveate.core import Assignment, fuse_rest, partition, selection
from foveate.drawing.pixels import WIDTH, fit_to_grid
from foveate.drawing.sheets import SLOT, Panel, tile
from foveate.drawing.style import GAP, LINE, MIST, OUTLINE
from foveate.drawing.tokens import FADED, TokenMap, draw_tokens, legend, stages, tokens
from foveate.methods import Site
from foveate_cli.main import main
from zoo import DEPTH, GRID, IMAGE, defaults, images, make, reduced

CELL = 84  # on the grid below, an image of this size is drawn pixel by pixel
SMALL = (2, 3)


@pytest.fixture
def pixels():
    shape = (3, SMALL[0] * CELL, SMALL[1] * CELL)
    return torch.randint(0, 200, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def traced(*steps, keys=None, grid=SMALL):
    """The trace of a model whose blocks did this to one image."""
    counts, left = [], grid[0] * grid[1]
    for step in steps:
        left = left if step is None else step.num_out
        counts.append(left)
    return Trace(grid, 1, 1, tuple(counts), steps, keys or (None,) * len(steps), torch.device("cpu"))


def owners(*slots):
    return partition(torch.tensor([slots]), max(slots) + 1)


def kept(*patches, of=6):
    return selection(torch.tensor([patches], dtype=torch.long), of)


def values(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def patch(colors, index, margin=1):
    """The pixels of one patch of the small grid, without those a line may stand on."""
    row, column = divmod(index, SMALL[1])
    inside = slice(row * CELL + margin, (row + 1) * CELL), slice(column * CELL + margin, (column + 1) * CELL)
    return colors[:, inside[0], inside[1]].float()


def test_kept_patches_are_unchanged_and_dropped_ones_faded(pixels):
    drawn = values(draw_tokens(pixels, traced(kept(0, 4)), 0))
    for index in range(6):
        before, after = patch(pixels, index, 0), patch(drawn, index, 0)
        if index in (0, 4):
            assert torch.equal(before, after)
        else:
            mist = torch.tensor(MIST, dtype=torch.float32).view(3, 1, 1)
            torch.testing.assert_close(after, before * (1 - FADED) + mist * FADED, atol=0.51, rtol=0)
            assert 0 < after.std() < before.std() / 3  # still to be seen, faintly


def test_patches_of_one_token_share_their_mean_color(pixels):
    drawn = values(draw_tokens(pixels, traced(owners(0, 0, 1, 2, 0, 2)), 0))
    for members in ((0, 1, 4), (3, 5)):
        mean = torch.stack([patch(pixels, i, 0) for i in members]).mean(dim=(0, 2, 3)).view(3, 1, 1)
        for index in members:
            assert (patch(drawn, index) - mean).abs().max() <= 0.51
    assert torch.equal(patch(drawn, 2), patch(pixels, 2))  # alone in its token


def test_lines_stand_exactly_between_tokens_of_which_one_is_merged(pixels):
    slots = [0, 0, 1, 2, 3, 3]
    drawn = values(draw_tokens(pixels, traced(owners(*slots)), 0))
    expected = torch.zeros(drawn.shape[1:], dtype=torch.bool)
    for y in range(expected.shape[0]):
        for x in range(expected.shape[1]):
            here = y // CELL * 3 + x // CELL
            for back in (here - 1,) * (x % CELL == 0 and x > 0) + (here - 3,) * (y % CELL == 0 and y > 0):
                both = slots[here], slots[back]
                expected[y, x] |= both[0] != both[1] and max(slots.count(slot) for slot in both) > 1
    found = (drawn == torch.tensor(OUTLINE).view(3, 1, 1)).all(dim=0)
    assert torch.equal(found, expected)
    assert found.any()


@pytest.mark.parametrize("step", [kept(1, 2, 5), owners(0, 1, 2, 3, 4, 5)])
def test_a_selection_has_no_lines(pixels, step):
    drawn = values(draw_tokens(pixels, traced(step), 0))
    assert not (drawn == torch.tensor(OUTLINE).view(3, 1, 1)).all(dim=0).any()


def test_a_fused_token_looks_neither_dropped_nor_merged(pixels):
    step = fuse_rest(torch.tensor([[0, 4]]), torch.full((1, 6), 0.1))
    fused = values(draw_tokens(pixels, traced(step), 0))
    dropped = values(draw_tokens(pixels, traced(kept(0, 4)), 0))
    for index in (0, 4):
        assert torch.equal(patch(fused, index), patch(pixels, index))
    mean = torch.stack([patch(pixels, i, 0) for i in (1, 2, 3, 5)]).mean(dim=(0, 2, 3)).view(3, 1, 1)
    for index in (1, 2, 3, 5):
        gap = (patch(dropped, index) - mean).abs().mean()
        assert 0 < (patch(fused, index) - mean).abs().mean() < gap * 0.8  # pulled to one tint
        assert 0 < patch(fused, index).std() < patch(dropped, index).std()
    found = TokenMap.of(traced(step), 0)
    assert found.fuses
    assert "fused into one token" in legend([found])


def test_tokens_fused_twice_are_still_fused_and_merged_ones_are_not():
    first, then = (fuse_rest(torch.tensor([kept]), torch.full((1, n), 0.1)) for kept, n in (([0, 2, 4], 6), ([1], 4)))
    twice, merged = traced(first, then), traced(owners(0, 1, 2, 0, 1, 3), then)
    assert TokenMap.of(twice, 1).fuses
    assert not TokenMap.of(merged, 0).fuses
    assert not TokenMap.of(merged, 1).fuses


def test_what_was_merged_and_then_dropped_is_faded(pixels):
    trace = traced(owners(0, 0, 1, 2, 1, 2), kept(1, 2, of=3))
    assert TokenMap.of(trace, 1).dropped.flatten().tolist() == [True, True, False, False, False, False]
    drawn = values(draw_tokens(pixels, trace, 1))
    assert patch(drawn, 0).mean() > patch(pixels, 0).float().mean() + 50
    assert "Faded: dropped." in legend([TokenMap.of(trace, 1)])


def test_a_patch_in_several_tokens_is_drawn_with_the_heaviest():
    src, dst = torch.tensor([[0, 1, 2, 2, 3, 4]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
    weight = torch.tensor([[0.2, 0.2, 0.6, 0.1, 0.4, 0.5]])
    found = TokenMap.of(traced(Assignment(src, dst, weight, 6, 2)), 0)
    assert found.owner.flatten().tolist() == [0, 0, 0, 1, 1, -1]
    assert found.overlaps
    assert "drawn with the one where its weight is largest" in legend([found])
    assert not TokenMap.of(traced(owners(0, 0, 1, 1, 1, 1)), 0).overlaps


def test_captions_count_tokens_and_keys():
    trace = traced(None, kept(0, 1, 2, 3), None, owners(0, 0, 0, 1))
    captions = [TokenMap.of(trace, block).caption for block in (0, 1, 2, -1)]
    counts = zip((0, 1, 2, 3), (6, 4, 4, 2), strict=True)
    assert captions == [f"after block {block}: {left} of 6 tokens" for block, left in counts]
    keyed = traced(None, None, keys=(None, kept(2, 3)))
    assert TokenMap.of(keyed, 1).caption == "keys in block 1: 2 of 6"
    assert TokenMap.of(keyed, 1).owner.flatten().tolist() == [-1, -1, 0, 1, -1, -1]
    assert not TokenMap.of(keyed, 0).dropped.any()
    nothing = TokenMap.of(traced(kept(0), kept(of=1)), 1)
    assert nothing.caption == "after block 1: 0 of 6 tokens"
    assert nothing.dropped.all()


def test_the_exact_last_block_shows_the_tokens_that_enter_it():
    trace = fv.trace(reduced("timm-cls", fv.ToMe(), exact_last_block=True), images())
    assert stages(trace) == [1, 2]
    last, before = TokenMap.of(trace, -1), TokenMap.of(trace, 2)
    assert last.caption == "in block 3: 14 of 36 tokens, then none"
    assert torch.equal(last.owner, before.owner)


def test_stages_are_the_blocks_that_leave_less():
    assert stages(traced(None, kept(0, 1, 2), None, kept(0, of=3))) == [1, 3]
    assert stages(traced(None, None, None, keys=(kept(0), None, kept(1)))) == [0, 2]
    soft = Assignment(None, None, torch.rand(1, 6), 6, 6)
    assert stages(traced(None, soft, soft)) == [2]  # nothing goes: the end stands for all
    every = traced(*(kept(*range(n), of=n + 1) for n in range(35, 23, -1)), grid=(6, 6))
    assert stages(every) == [2, 4, 7, 9, 11]
    assert stages(every, most=6) == [1, 3, 5, 7, 9, 11]
    assert stages(every, most=12) == list(range(12))


@pytest.mark.parametrize("method", [*defaults(), fv.FreeSlice(site=Site.KV)], ids=repr)
def test_panels_of_every_method_differ_from_the_photograph_where_tokens_go(method, photo):
    model = reduced("timm-cls", method)
    colors = torch.randint(0, 256, (3, IMAGE, IMAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    trace = fv.trace(model, images())
    plain = fit_to_grid(colors, GRID).float()
    cell, went = WIDTH // GRID[0], False
    for block in range(DEPTH):
        found = TokenMap.of(trace, block, image=1)
        drawn = values(draw_tokens(colors, trace, block, image=1))
        other = (drawn != plain).any(dim=0).view(GRID[0], cell, GRID[1], cell)
        changed = other[:, 1:, :, 1:].float().amax(dim=(1, 3)) > 0  # lines stand on the first pixels
        assert torch.equal(changed, found.dropped | found.shared)
        went |= bool(changed.any())
    assert went == (method.name != "PoWERSearch")  # which scales tokens and keeps them all
    whole = tokens(model, [photo], name=method.name)
    assert whole.size[0] >= 2 * WIDTH


def test_an_image_of_a_batch_is_drawn_as_if_alone(pixels):
    model, batch = reduced("timm-cls", fv.EViT()), images()
    together, alone = fv.trace(model, batch), fv.trace(model, batch[2:])
    assert torch.equal(values(draw_tokens(pixels, together, 2, 2)), values(draw_tokens(pixels, alone, 2)))
    assert not torch.equal(values(draw_tokens(pixels, together, 2, 2)), values(draw_tokens(pixels, together, 2, 0)))


@pytest.mark.parametrize(("size", "grid", "drawn"), [((24, 48), (3, 6), (126, 252)), ((64, 32), (4, 4), (252, 128))])
def test_the_shape_of_images_and_patches_is_kept(size, grid, drawn):
    large = fit_to_grid(torch.zeros(3, *size, dtype=torch.uint8), grid)
    assert large.shape[1:] == drawn
    trace = traced(kept(0, of=grid[0] * grid[1]), grid=grid)
    assert draw_tokens(torch.zeros(3, *size, dtype=torch.uint8), trace, 0).size == drawn[::-1]


def test_patches_of_a_fine_grid_stay_visible():
    assert fit_to_grid(torch.zeros(3, 200, 200, dtype=torch.uint8), (100, 100)).shape[1:] == (400, 400)


def test_the_legend_says_nothing_of_what_is_not_shown():
    whole = TokenMap.of(traced(None), 0)
    assert legend([whole]) == "Unchanged: a patch with a token of its own."
    merged = TokenMap.of(traced(owners(0, 0, 0, 1, 1, 1)), 0)
    assert legend([merged]).startswith("Outlined, in one color")
    assert legend([merged]) in legend([whole, merged])
    assert "Faded" not in legend([whole, merged])


def test_photographs_stand_below_each_other_and_blocks_beside_them(photo):
    model = reduced("timm-cls", fv.TopK())
    one, again = (tokens(model, [photo], name="toy") for _ in range(2))
    assert one.tobytes() == again.tobytes()
    assert one.width == 3 * (WIDTH + GAP) + GAP  # the photograph and two stages
    two = tokens(model, [photo, photo], name="toy")
    assert two.height - one.height == WIDTH + LINE + GAP
    asked = tokens(model, [photo], name="toy", blocks=[-1])
    assert asked.width == 2 * (WIDTH + GAP) + GAP


def test_errors_in_words(photo):
    with pytest.raises(ValueError, match=r"toy is not reduced.*nothing to show.*--method"):
        tokens(make("timm-cls"), [photo], name="toy")
    with pytest.raises(ValueError, match=r"4 blocks \(0..3\); got 4"):
        tokens(reduced("timm-cls", fv.TopK()), [photo], name="toy", blocks=[4])
    with pytest.raises(ValueError, match="There is no image"):
        tokens(reduced("timm-cls", fv.TopK()), [photo.with_name("none.png")], name="toy")


def test_the_command_writes_a_png(photo, tmp_path, capsys):
    out = tmp_path / "out.png"
    arguments = ["show", "tokens", "test_vit", str(photo), "--out", str(out)]
    assert main([*arguments, "--method", "tome", "--remove", "5"]) == 0
    with Image.open(out) as drawn:
        assert drawn.format == "PNG"
    assert main(arguments) == 2
    assert "nothing to show" in capsys.readouterr().err


def dark_columns(image, top, bottom):
    """The columns with ink in some rows of a picture."""
    return (np.array(image.convert("L"))[top:bottom] < 200).any(axis=0).nonzero()[0]


def test_tiles_fill_their_rows():
    panels = [Panel(Image.new("RGB", (SLOT, 10), "red"))] * 9
    sizes = [tile("t", [panels[:n]]).size for n in (1, 4, 5, 6, 7, 8, 9)]
    assert [(width - GAP) // (SLOT + GAP) for width, _ in sizes] == [1, 4, 5, 3, 4, 4, 3]
    assert sizes[0][1] == sizes[1][1] == sizes[2][1] == sizes[3][1] - (10 + LINE + GAP)
    both = tile("t", [panels[:2], panels[:1]])
    assert both.getpixel((GAP, LINE + 2 * GAP)) == both.getpixel((GAP, 2 * LINE + 3 * GAP + 10)) == (255, 0, 0)


def test_words_stay_on_the_sheet_and_captions_in_their_tile():
    blank = Image.new("RGB", (40, 10), "white")
    panels = [Panel(blank, "a name that is far too long " * 3), Panel(blank)]
    words = "many words that would not fit into one line of this sheet " * 3
    short, long = tile("t", [panels], "n"), tile(words, [panels], words)
    assert short.width == long.width == 2 * (SLOT + GAP) + GAP
    lines = (long.height - short.height) // LINE
    assert lines >= 2
    assert dark_columns(long, 0, long.height).max() < long.width - GAP
    caption = dark_columns(short, LINE + 2 * GAP, LINE + 2 * GAP + 10 + LINE)
    assert GAP + SLOT * 0.9 < caption.max() < GAP + SLOT
