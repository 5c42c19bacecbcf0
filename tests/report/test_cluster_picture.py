"""``foveate show clusters``: every cluster is drawn where its tokens are."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import foveate as fv
from foveate.cli.main import main
from foveate.report.drawing import Panel
from foveate.report.pictures import PictureRequest
from foveate.report.pictures.clusters import RED, STRENGTH, cluster_maps, clusters, largest
from foveate.report.pictures.tokens import TokenMap
from zoo import images, make, reduced


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    noise = np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.mark.parametrize("share", [False, True])
def test_the_clusters_drawn_are_those_that_attention_used(share):
    torch.manual_seed(0)
    model = timm.create_model("clustr_tiny", clustering={"share": share}).eval()
    x = torch.randn(1, 3, 96, 96)
    seen = {}
    for index, block in enumerate(model.stages[1].blocks):
        block.attn.clusters.register_forward_hook(lambda _, args, out, index=index: seen.update({index: out}))
    coarse, fine = cluster_maps(model, x, PictureRequest([], stage=2))
    used = seen[0 if share else 1]
    assert torch.equal(coarse.owner, used[0].clusters.owner[0].view(12, 12))
    assert torch.equal(fine.owner, used[1].clusters.owner[0].view(12, 12))
    assert coarse.caption == "stage 2, block 1: 9 clusters of 144"


def test_keys_of_a_plain_transformer_are_drawn_block_by_block():
    model = reduced("timm-cls", fv.ClusterAttention())
    (last,) = cluster_maps(model, images(1), PictureRequest([]))
    expected = fv.trace(model, images(1)).key_steps[2].dst
    assert torch.equal(last.owner.flatten(), expected[0])
    assert len(cluster_maps(model, images(1), PictureRequest([], blocks=[1, 2]))) == 2


def test_the_largest_cluster_is_red_and_comes_first():
    pixels = torch.full((3, 168, 252), 100, dtype=torch.uint8)
    owner = torch.tensor([[0, 1, 1], [0, 1, 2]])
    panels = largest(pixels, TokenMap("", owner, fuses=False, overlaps=False))
    assert [panel.caption for panel in panels] == ["3 tokens", "2 tokens", "1 tokens"]
    assert all(isinstance(panel, Panel) for panel in panels)
    drawn = np.array(panels[0].image)
    mixed = [round(100 * (1 - STRENGTH) + c * STRENGTH) for c in RED]
    assert drawn[10, 100].tolist() == mixed
    assert drawn[10, 10].tolist() == [100, 100, 100]
    assert drawn[100, 200].tolist() == [100, 100, 100]


def test_the_command_writes_a_picture(photo, tmp_path, capsys):
    out = tmp_path / "clusters.png"
    assert main(["show", "clusters", "clustr_tiny", str(photo), "--stage", "3", "--out", str(out)]) == 0
    with Image.open(out) as drawn:
        assert drawn.width > 500


WRONG = {
    "stages 1 to 4; got --stage 5": lambda: PictureRequest([], stage=5),
    "Stage 4 clusters nothing": lambda: PictureRequest([], stage=4),
}


@pytest.mark.parametrize("words", WRONG)
def test_stages_that_cannot_be_shown_are_refused(words):
    with pytest.raises(ValueError, match=words):
        cluster_maps(timm.create_model("clustr_tiny"), torch.randn(1, 3, 96, 96), WRONG[words]())


def test_a_model_without_clusters_is_refused(photo):
    with pytest.raises(ValueError, match="clusters no keys"):
        clusters(make("timm-cls"), PictureRequest([photo]))
    with pytest.raises(ValueError, match=r"Block 0 clusters nothing. Blocks that do: \[1, 2\]"):
        cluster_maps(reduced("timm-cls", fv.ClusterAttention()), images(1), PictureRequest([], blocks=[0]))
