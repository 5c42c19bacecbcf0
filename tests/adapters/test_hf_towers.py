"""Towers for images of different sizes: masked or packed, each image as if it were alone."""

import pytest
import torch
import transformers

import foveate as fv

SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "patch_size": 4}
KEEP = fv.KeepRate(0.5, blocks=(1,))
GRIDS = [(6, 6), (4, 6), (6, 6)]


def made(model):
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn_like(parameter) + (parameter.dim() == 1))
    return model.eval()


def picture(number, grid, channels=3):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(channels, 4 * grid[0], 4 * grid[1], generator=generator)


def siglip2():
    return transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**SIZE, num_patches=36))


def siglip2_inputs(numbers):
    pixels, mask = torch.zeros(len(numbers), 40, 48), torch.zeros(len(numbers), 40, dtype=torch.long)
    for row, number in enumerate(numbers):
        rows, columns = GRIDS[number]
        patches = picture(number, GRIDS[number]).reshape(3, rows, 4, columns, 4).permute(1, 3, 2, 4, 0)
        pixels[row, : rows * columns] = patches.reshape(rows * columns, -1)
        mask[row, : rows * columns] = 1
    shapes = torch.tensor([GRIDS[number] for number in numbers])
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}


def padded_images(numbers):
    pixels = torch.zeros(len(numbers), 3, 24, 24)
    for row, number in enumerate(numbers):
        rows, columns = GRIDS[number]
        pixels[row, :, : 4 * rows, : 4 * columns] = picture(number, GRIDS[number])
    return pixels


def idefics3():
    config = transformers.Idefics3Config(vision_config=SIZE | {"image_size": 24}).vision_config
    return transformers.Idefics3VisionTransformer(config)


def idefics3_inputs(numbers):
    mask = torch.zeros(len(numbers), 6, 6, dtype=torch.bool)
    for row, number in enumerate(numbers):
        mask[row, : GRIDS[number][0], : GRIDS[number][1]] = True
    return {"pixel_values": padded_images(numbers), "patch_attention_mask": mask}


def pixtral():
    return transformers.PixtralVisionModel(transformers.PixtralVisionConfig(**SIZE, image_size=24))


def pixtral_inputs(numbers):
    sizes = torch.tensor([[4 * rows, 4 * columns] for rows, columns in (GRIDS[number] for number in numbers)])
    return {"pixel_values": padded_images(numbers), "image_sizes": sizes}


QWEN = {"depth": 4, "num_heads": 2, "deepstack_visual_indexes": [0, 2], "out_hidden_size": 32, "in_channels": 3}
QWEN |= {"hidden_size": 32, "intermediate_size": 64, "patch_size": 4, "num_position_embeddings": 36}


def qwen3():
    return transformers.Qwen3VLVisionModel(transformers.models.qwen3_vl.Qwen3VLVisionConfig(**QWEN))


def qwen2():
    config = {"depth": 4, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    made_from = transformers.models.qwen2_vl
    return made_from.modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel(
        made_from.configuration_qwen2_vl.Qwen2VLVisionConfig(**config)
    )


def qwen3_patches(number):
    """Two frames of one picture, patches in blocks of 2 x 2."""
    rows, columns = GRIDS[number]
    frames = picture(number, GRIDS[number], 6).view(3, 2, rows // 2, 2, 4, columns // 2, 2, 4)
    return frames.permute(2, 5, 3, 6, 0, 1, 4, 7).reshape(rows * columns, -1)


def qwen3_inputs(numbers):
    patches = torch.cat([qwen3_patches(number) for number in numbers])
    return {"hidden_states": patches, "grid_thw": torch.tensor([[1, *GRIDS[number]] for number in numbers])}


TOWERS = {siglip2: siglip2_inputs, idefics3: idefics3_inputs, pixtral: pixtral_inputs, qwen3: qwen3_inputs}
TOWERS |= {qwen2: qwen3_inputs}
QWENS = (qwen2, qwen3)
every_tower = pytest.mark.parametrize("build", TOWERS, ids=lambda build: build.__name__)


def of_image(build, tokens, inputs, number):
    """The tokens of one image of a batch."""
    if build in (pixtral, *QWENS):
        flat = tokens[0] if tokens.dim() == 3 else tokens
        grids = inputs["grid_thw"][:, 1:] if build in QWENS else inputs["image_sizes"] // 4
        return flat.split([int(grid.prod()) for grid in grids])[number]
    mask = inputs["pixel_attention_mask" if build is siglip2 else "patch_attention_mask"]
    return tokens[number][mask[number].flatten().bool()]


@every_tower
def test_an_empty_schedule_changes_nothing(build):
    model, inputs = made(build()), TOWERS[build](range(3))
    with torch.no_grad():
        plain = model(**inputs)
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            same = model(**inputs)
    assert plain.keys() == same.keys()
    assert torch.equal(plain.last_hidden_state, same.last_hidden_state)


@every_tower
def test_images_taken_apart_and_put_together_give_what_the_tower_gives(build):
    """By a reduction that leaves all tokens where they are, but runs image by image."""
    model, inputs = made(build()), TOWERS[build](range(3))
    with torch.no_grad():
        plain = model(**inputs, output_hidden_states=True)
        fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.9, blocks=(3,)), output="grid")
        found = model(**inputs, output_hidden_states=True)
        assert plain.last_hidden_state.shape == found.last_hidden_state.shape
        for level in (0, 1, 3):
            for number in range(3):
                one = of_image(build, plain.hidden_states[level], inputs, number)
                torch.testing.assert_close(of_image(build, found.hidden_states[level], inputs, number), one)
        if build is qwen3:
            torch.testing.assert_close(found.deepstack_features[0], plain.deepstack_features[0])


@every_tower
def test_an_image_does_not_depend_on_its_batch(build):
    model = fv.reduce_(made(build()), fv.ToMe(), KEEP, output="grid")
    whole, alone = TOWERS[build](range(3)), TOWERS[build]([1])
    with torch.no_grad():
        among = of_image(build, model(**whole).last_hidden_state, whole, 1)
        single = of_image(build, model(**alone).last_hidden_state, alone, 0)
    assert among.shape[0] == 24
    torch.testing.assert_close(among, single, rtol=1e-4, atol=1e-5)


@every_tower
def test_a_selection_is_the_tower_with_those_patches_alone(build):
    """A reference that knows no engine: the blocks run over all patches, attention sees the kept ones."""
    model = made(build())
    fv.reduce_(model, fv.TopK(), fv.Keep({1: 10}), output="tokens" if build not in QWENS else "grid")
    family = fv.inspect(model)
    x = picture(0, GRIDS[0]).unsqueeze(0)
    with torch.no_grad():
        encoded = family.encode(x, record=True)
        kept = encoded.blocks[1].step.assignment.src[0]
        tokens, source = family.embed_with_positions(x)
        for index, pieces in enumerate(family.pieces()):
            rows = None if source is None else source.rows(None, index)
            normed = pieces.normed(tokens)
            (q, k, v), _ = pieces.placed(pieces.project(normed), rows, rows)
            logits = q @ k.transpose(2, 3) * pieces.scale
            if index > 1:
                hidden = torch.ones(36, dtype=torch.bool).index_fill(0, kept, False)
                logits = logits.masked_fill(hidden, float("-inf"))
            tokens = tokens + pieces.after_attention(logits.softmax(dim=-1) @ v, normed)
            tokens = pieces.mlp(tokens)
        last = encoded.blocks[-1].stream.tokens[0]
    torch.testing.assert_close(last, tokens[0, kept], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", QWENS, ids=lambda build: build.__name__)
def test_packed_patches_that_do_not_fit_their_grids_are_refused(build):
    model, patches = fv.reduce_(made(build()), fv.ToMe(), KEEP), qwen3_patches(0)
    with pytest.raises(ValueError, match="Image 1 has 3 x 4 patches, which blocks of 2 x 2 do not divide"):
        model(patches, torch.tensor([[1, 4, 6], [1, 3, 4]]))
    for grid in ([1, 6, 4], [1, 6, 8]):
        with pytest.raises(ValueError, match=f"has {grid[1] * grid[2]} patches, got 36"):
            model(patches, torch.tensor([grid]))


@pytest.mark.parametrize("build", [siglip2, pixtral], ids=lambda build: build.__name__)
def test_every_image_needs_its_size(build):
    model, inputs = fv.reduce_(made(build()), fv.ToMe(), KEEP), TOWERS[build](range(3))
    name = "spatial_shapes" if build is siglip2 else "image_sizes"
    with pytest.raises(ValueError, match=f"3 images and 2 {name}"):
        model(**inputs | {name: inputs[name][:2]})


def test_pooling_weighs_tokens_by_the_patches_they_stand_for():
    model, inputs = made(siglip2()), siglip2_inputs(range(3))
    with torch.no_grad():
        plain = model(**inputs).pooler_output
        fv.reduce_(model, fv.ToMe(), KEEP)
        out = model(**inputs)
        assert out.last_hidden_state.shape[1] == 18
        assert out.pooler_output.shape == plain.shape
        single = model(**siglip2_inputs([1])).pooler_output
    torch.testing.assert_close(out.pooler_output[1:2], single, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [siglip2, idefics3], ids=lambda build: build.__name__)
def test_masks_that_hide_all_or_no_rectangle_are_refused(build):
    model, inputs = fv.reduce_(made(build()), fv.ToMe(), KEEP), TOWERS[build](range(3))
    mask = inputs["pixel_attention_mask" if build is siglip2 else "patch_attention_mask"]
    mask[1] = 0
    with pytest.raises(ValueError, match="Image 1 of the batch has no visible patch"):
        model(**inputs)
    mask[1].view(-1)[[0, 1, 6, 7, 8]] = 1
    with pytest.raises(ValueError, match=r"Image 1 .* shows 5\. A reduced model takes whole rectangles"):
        model(**inputs)


@pytest.mark.parametrize("build", QWENS, ids=lambda build: build.__name__)
def test_what_is_merged_behind_the_tower_is_the_grid(build):
    model, inputs = fv.reduce_(made(build()), fv.ToMe(), KEEP), qwen3_inputs(range(3))
    with torch.no_grad():
        found = model(**inputs)
        assert found.pooler_output.shape[0] * 4 == found.last_hidden_state.shape[0]
        assert torch.equal(found.pooler_output, model.merger(found.last_hidden_state))


@pytest.mark.parametrize("build", [pixtral, qwen2], ids=lambda build: build.__name__)
def test_a_tower_is_saved_and_loaded(build, tmp_path):
    model, inputs = fv.reduce_(made(build()), fv.ToMe(), KEEP), TOWERS[build](range(3))
    fv.save(model, tmp_path / "m")
    with torch.no_grad():
        assert torch.equal(fv.load(tmp_path / "m")(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
