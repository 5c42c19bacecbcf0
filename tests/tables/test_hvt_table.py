"""HVT's printed costs, counted from the models."""

import dataclasses

import pytest

import foveate as fv
from foveate.tables import hvt
from foveate.tables.models import build_shapes


@pytest.fixture(scope="module")
def table():
    return hvt.hvt()


def test_every_printed_cell_holds(table):
    assert table.holds
    assert table.note.startswith("FLOPs: 36 of 36; parameters: 32 of 32.")
    assert [row.cells[1] for row in table.rows if row.holds is None] == ["DeiT-Ti + PoWER", "DeiT-S + PoWER"]


def test_the_known_counts_to_four_digits(table):
    counts = {(row.cells[0], row.cells[1]): row.cells for row in table.rows}
    for place, paper, params in (("HVT-S-1", 2.4022, 22.0871), ("Scale HVT-Ti-4", 1.3939, 22.1186)):
        cells = counts["1", place]
        assert (round(cells[3], 4), round(cells[6], 4)) == (paper, params)
    assert round(counts["7", "HVT-S-4, 160 px"][4], 4) == 0.6849
    assert round(counts["7", "HVT-S-4, 160 px"][3], 4) == 0.6850


TOY = {"stages": 2, "depth": 4, "num_heads": 1, "img_size": 64, "patch_size": 8, "num_classes": 5}
"""Two stages on 64 patches of width 64: 64 -> 31 -> 15 tokens."""


@pytest.mark.parametrize(("pool", "elements"), [("max", (64, 31)), ("avg", (64, 31)), ("conv", (31, 15))])
def test_the_paper_counts_blocks_embedding_head_and_poolings(pool, elements):
    """The printed formula by hand. A pooling counts what enters it, a convolution its bias."""
    model, d = build_shapes("hvt_tiny", **TOY, pool=pool), 64
    blocks = sum(12 * n * d**2 + 2 * n**2 * d for n in (64, 31, 31, 15))
    embedding, head = 64 * (3 * 8 * 8 * d), 5 * d
    plain = fv.cost(model).macs
    assert list(hvt.pooling_elements(model)) == [d * n for n in elements]
    assert hvt.papers_flops(model) == plain + 64 * d + sum(elements) * d
    if pool != "conv":
        assert plain == blocks + embedding + head


def test_a_wrong_number_is_seen():
    row, figures = hvt.count(dataclasses.replace(hvt.PRINTED[6], flops="2.41"))
    assert [figure.holds for figure in figures] == [False, True]
    assert row.holds is False
