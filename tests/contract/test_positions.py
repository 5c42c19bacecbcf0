"""The contract, part four: where tokens are travels with them, in models whose blocks read positions."""

import copy

import pytest
import torch
from timm.layers import freq_bands
from timm.layers.pos_embed_sincos import get_mixed_freqs
from timm.models.deepseek_vit import DeepseekVitBlock
from timm.models.gemma4_vit import Gemma4Block

import foveate as fv
from foveate.adapters.positions import Positions
from foveate.core import Assignment
from zoo import FAMILIES, GRID, PATCHES, encoded, family_of, images, main_output, make, reduced

ROTARY, RELATIVE = ("timm-rope", "timm-gemma", "hf-dinov3"), ("timm-bias", "hf-beit")
ADDED = ("hf-yolos",)  # to the tokens, before every block
BETWEEN = [name for name, family in FAMILIES.items() if family.block in ROTARY]
PLACED = [*BETWEEN, *(name for name, family in FAMILIES.items() if family.block in RELATIVE + ADDED)]
every_placed = pytest.mark.parametrize("family", PLACED)
every_rotary = pytest.mark.parametrize("family", BETWEEN)


def test_every_family_that_reads_positions_is_here():
    assert sorted(PLACED) == [n for n in sorted(FAMILIES) if family_of(make(n)).position_source(images(1)) is not None]
    assert sorted(BETWEEN) == [n for n in sorted(FAMILIES) if family_of(make(n)).positions_between_patches]


@every_placed
def test_another_order_of_all_tokens_changes_nothing_but_the_order(family):
    bound, x = family_of(make(family)), images(3)
    prefix = bound.num_prefix
    generator = torch.Generator().manual_seed(1)
    order = torch.stack([torch.randperm(PATCHES, generator=generator) for _ in range(3)])
    places = torch.cat([torch.arange(prefix).expand(3, -1), order + prefix], dim=1).unsqueeze(-1)
    with torch.no_grad():
        tokens, source = bound.embed_with_positions(x)
        shuffled = tokens.gather(1, places.expand_as(tokens))
        for index, pieces in enumerate(bound.pieces()):
            rows, others = source.rows(None, index), source.rows(order, index)
            tokens = pieces.whole(pieces.entered(tokens, rows), rows)
            shuffled = pieces.whole(pieces.entered(shuffled, others), others)
        torch.testing.assert_close(shuffled, tokens.gather(1, places.expand_as(tokens)), rtol=1e-4, atol=1e-5)


def masked_block(family, index, tokens, source, mask):
    """A block on the whole grid, for one image, with some keys hidden by ``mask`` (1, 1, 1, P + N).

    It is timm's own block; for transformers it is the block's pieces, which another law compares with the whole block.
    """
    block, rows = family.blocks[index], source.rows(None, index)
    if family.library != "timm":
        pieces = family.pieces()[index]
        tokens = pieces.entered(tokens, rows)
        normed = pieces.normed(tokens)
        (q, k, v), bias = pieces.placed(pieces.project(normed), rows, rows)
        weights = (q @ k.transpose(2, 3) * pieces.scale + mask + (0 if bias is None else bias)).softmax(dim=-1)
        return pieces.mlp(tokens + pieces.after_attention(weights @ v, normed))
    if isinstance(block, Gemma4Block):
        sine, cosine = rows.unsqueeze(0).chunk(2, dim=-1)
        return block(tokens, cosine, sine, attn_mask=mask)
    if isinstance(block, DeepseekVitBlock):
        tokens = tokens + block.attn(block.norm1(tokens), rope=rows, attn_mask=mask)
        return tokens + block.mlp(block.norm2(tokens))
    if family.positions_between_patches:
        return block(tokens, rope=rows, attn_mask=mask)
    hidden = copy.deepcopy(block)
    if hasattr(block.attn, "rel_pos"):
        bias = block.attn.rel_pos.get_bias() + mask
        hidden.attn.rel_pos.get_bias = lambda: bias
        return hidden(tokens)
    return hidden(tokens, shared_rel_pos_bias=source.shared + mask)


@every_placed
def test_a_selection_equals_the_whole_grid_with_the_other_tokens_hidden(family):
    """Slow and obvious: no token moves, positions are read in order, and dropped tokens are no longer keys."""
    plain, model, x = make(family), reduced(family, fv.TopK(), positions="representative"), images(3)
    bound, trace = family_of(plain), fv.trace(model, x)
    prefix = bound.num_prefix
    kept = [trace.owner(block) >= 0 for block in range(len(trace))]
    assert not torch.equal(kept[-1][0], kept[-1][1]), "two images keep different patches"
    with torch.no_grad():
        got = encoded(model, x, record=True).blocks[-1].stream.tokens
        for image in range(3):
            tokens, source = bound.embed_with_positions(x[image : image + 1])
            mask = torch.zeros(1, 1, 1, prefix + PATCHES)
            for index in range(len(trace)):
                tokens = masked_block(bound, index, tokens, source, mask)
                mask[..., prefix:] = torch.zeros(PATCHES).masked_fill(~kept[index][image], -torch.inf)
            left = torch.cat([torch.ones(prefix, dtype=torch.bool), kept[-1][image]])
            torch.testing.assert_close(got[image], tokens[0, left], rtol=1e-4, atol=1e-5)


@every_rotary
def test_mean_positions_of_a_selection_are_those_of_its_tokens(family):
    x = images(3)
    with torch.no_grad():
        for method in (fv.TopK(), fv.ToMe()):
            mean = main_output(reduced(family, method, positions="mean"), x)
            heaviest = main_output(reduced(family, method, positions="representative"), x)
            assert torch.allclose(mean, heaviest, rtol=1e-4, atol=1e-5) == isinstance(method, fv.TopK)
            assert torch.equal(main_output(reduced(family, method), x), mean), "the default of rotary positions"


@pytest.mark.parametrize("family", [name for name in BETWEEN if name.startswith("timm")])
def test_angles_between_patches_are_those_of_the_librarys_own_formula(family):
    bound = family_of(make(family))
    tower = getattr(bound.model, "encoder", bound.model)
    source = bound.position_source(images(1))
    at = torch.rand(2, 9, 2, generator=torch.Generator().manual_seed(2)) * (torch.tensor(GRID) - 1)
    for block in range(len(bound.blocks)):
        for image in range(2):
            expected = formula(tower, at[image], block)
            found = source.rows_at(at, block)[image].squeeze(0)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def formula(tower, at, block):
    """Sines and cosines at rows and columns ``at`` (n, 2), by what each kind of timm's embeddings computes."""
    if hasattr(tower, "rotary_emb"):
        cosine, sine = tower.rotary_emb(at, at.flip(1).unsqueeze(0))
        return torch.cat([sine, cosine], dim=-1)[0]
    rope = tower.rope
    if hasattr(rope, "freqs"):
        return get_mixed_freqs(rope.freqs, at[:, 1], at[:, 0])[block]  # columns first
    if hasattr(rope, "periods"):
        return torch.cat(rope._get_pos_embed_from_coords(2 * (at + 0.5) / torch.tensor(GRID) - 1), dim=-1)
    bands = freq_bands(rope.dim // 4, temperature=rope.temperature, step=1)
    angles = torch.cat([at[:, :1] * bands, at[:, 1:] * bands], dim=-1)
    angles = angles.tile(2) if rope.rotate_half else angles.repeat_interleave(2, dim=-1)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def test_a_merged_token_is_at_its_heaviest_member_or_at_the_mean():
    source = family_of(make(BETWEEN[0])).position_source(images(1))
    merge = Assignment(
        src=torch.tensor([[0, 7, 14, 3]]),
        dst=torch.tensor([[0, 0, 0, 1]]),
        weight=torch.tensor([[0.2, 0.5, 0.3, 1.0]]),
        num_in=PATCHES,
        num_out=2,
    )
    size = torch.ones(1, PATCHES).index_fill(1, torch.tensor([14]), 4.0)
    heaviest = Positions(source).after(merge, size, 1, size.device)
    assert heaviest.index.tolist() == [[7, 3]]
    mean = Positions(source, averages=True).after(merge, size, 1, size.device)
    # patches 0, 7 and 14 are at (0, 0), (1, 1) and (2, 2); the last stands for four
    torch.testing.assert_close(mean.coordinates, torch.tensor([[[1.5, 1.5], [0.0, 3.0]]]))


@pytest.mark.parametrize("family", ["timm-rope-mixed", "timm-rope-shared-keys"])
def test_mean_positions_save_export_cost_and_copy(family, tmp_path):
    model, x = reduced(family, fv.ToMe(), positions="mean"), images(3)
    with torch.no_grad():
        expected = main_output(model, x)
        assert torch.equal(main_output(copy.deepcopy(model), x), expected)
        program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=8)},))
        torch.testing.assert_close(program.module()(x[:2]), expected[:2], rtol=1e-4, atol=1e-5)
        alone = torch.cat([main_output(model, x[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-5)
    with pytest.warns(UserWarning, match="cannot be rebuilt"):
        fv.save(model, tmp_path / "saved")
    loaded = fv.load(tmp_path / "saved", model=make(family))
    assert fv.inspect(loaded).reduction == fv.inspect(model).reduction
    assert torch.equal(main_output(loaded, x), expected)


def test_relative_positions_have_no_mean():
    with pytest.raises(ValueError, match="positions='mean' needs blocks"):
        reduced("timm-beit", fv.ToMe(), positions="mean")
