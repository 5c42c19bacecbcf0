"""``foveate show clusters``: every cluster is drawn where its tokens are."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import foveate as fv
from foveate.drawing.clusters import STRENGTH, cluster_maps, clusters, largest
from foveate.drawing.sheets import Panel
from foveate.drawing.style import RED
from foveate.drawing.tokens import TokenMap
from foveate_cli.main import main
from zoo import images, make, reduced


@pytest.fixture(scope="module", params=[False, True], ids=["each-block", "shared"])
def clustr(request):
    """A small ClusTR, with clusters of each block's own or shared by the blocks of a stage."""
    torch.manual_seed(0)
    return timm.create_model("clustr_tiny", clustering={"share": request.param}).eval()


def test_the_clusters_drawn_are_those_that_attention_used(clustr):
    x = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    seen, hooks = {}, []
    for index, block in enumerate(clustr.stages[1].blocks):
        watch = lambda _, args, out, index=index: seen.update({index: out})  # noqa: E731
        hooks.append(block.attn.clusters.register_forward_hook(watch))
    coarse, fine = cluster_maps(clustr, x, stage=2)
    for hook in hooks:
        hook.remove()
    used = seen[max(seen)]
    assert set(seen) == ({0} if clustr.stages[1].share else {0, 1})
    assert torch.equal(coarse.owner, used[0].clusters.owner[0].view(12, 12))
    assert torch.equal(fine.owner, used[1].clusters.owner[0].view(12, 12))
    assert coarse.caption == "stage 2, block 1: 9 clusters of 144"


def test_keys_of_a_plain_transformer_are_drawn_block_by_block():
    model = reduced("timm-cls", fv.ClusterAttention())
    (last,) = cluster_maps(model, images(1))
    expected = fv.trace(model, images(1)).key_steps[2].dst
    assert torch.equal(last.owner.flatten(), expected[0])
    assert len(cluster_maps(model, images(1), blocks=[1, 2])) == 2


def test_the_largest_cluster_is_red_and_comes_first():
    pixels = torch.full((3, 168, 252), 100, dtype=torch.uint8)
    owner = torch.tensor([[0, 1, 1], [0, 1, 2]])
    panels = largest(pixels, TokenMap("", owner, fuses=False, overlaps=False))
    assert [panel.caption for panel in panels] == ["3 tokens", "2 tokens", "1 token"]
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


@pytest.mark.parametrize(("stage", "words"), [(5, "stages 1 to 4; got --stage 5"), (4, "Stage 4 has no clusters")])
def test_stages_that_cannot_be_shown_are_refused(clustr, stage, words):
    with pytest.raises(ValueError, match=words):
        cluster_maps(clustr, torch.randn(1, 3, 96, 96), stage=stage)


def test_a_model_without_clusters_is_refused(photo):
    with pytest.raises(ValueError, match="does not cluster keys"):
        clusters(make("timm-cls"), [photo])
    with pytest.raises(ValueError, match=r"Block 0 has no clusters. Blocks with clusters: \[1, 2\]"):
        cluster_maps(reduced("timm-cls", fv.ClusterAttention()), images(1), blocks=[0])
