"""ClusTR's printed costs, counted from the models."""

import pytest

from foveate.tables import clustr
from foveate.tables.models import build_shapes


@pytest.fixture(scope="module")
def table():
    return clustr.clustr()


def test_every_printed_cell_holds(table):
    assert table.holds
    assert table.note.startswith("FLOPs: 8 of 8; parameters: 12 of 12.")


def test_the_known_counts(table):
    """Parameters to the last digit that is known of them, FLOPs by the paper's rule and with all attention."""
    cells = {row.cells[1]: row.cells for row in table.rows}
    for label, params, rule, attention in (
        ("ClusTR-T", 11.682, 2.156, 2.421),
        ("ClusTR-S", 22.691, 4.800, 5.467),
        ("ClusTR-B", 40.246, 7.485, 8.333),
        ("SRA (grid)", 13.182, 2.103, 2.092),
    ):
        assert [round(cells[label][i], 3) for i in (7, 3, 4)] == [params, rule, attention]
    assert all(row.cells[5] >= row.cells[4] for row in table.rows)


def test_a_row_that_is_off_does_not_hold(monkeypatch):
    monkeypatch.setattr(clustr, "PRINTED", (clustr.tiny("1", "ClusTR-T", "2.4", "11.7"),))
    assert not clustr.clustr().holds


def test_the_rule_replaces_attention_and_adds_norms():
    model = build_shapes("clustr_tiny", scales=(64, 16, 4, 1))
    plain = clustr.fv.cost(model)
    norms = 2 * sum(n * c * depth for n, c, depth in ((3136, 64, 1), (784, 128, 2), (196, 256, 6), (49, 512, 1)))
    norms += 2 * sum(n * c for n, c in ((3136, 64), (784, 128), (196, 256), (49, 512)))
    assert clustr.papers_flops(model) == plain.macs - plain.reduction_macs + 5 * norms  # these ratios are r squared


def test_dense_models_have_the_printed_parameters_and_their_true_cost(table):
    rows = {row.cells[1]: row for row in table.rows if row.cells[0] in ("2", "3", "4")}
    assert len(rows) == 8
    for label, place, params in (
        ("Semantic FPN", "2", 26.428),
        ("UperNet", "2", 52.486),
        ("Mask R-CNN", "3", 42.329),
        ("RetinaNet", "4", 32.412),
    ):
        small, large = (rows[f"ClusTR-S + {label}, {size}"] for size in ("512 x 512", "800 x 1333"))
        assert (small.cells[0], round(small.cells[7], 3), small.holds) == (place, params, True)
        assert large.holds is None
        assert small.cells[4] < small.cells[5] < large.cells[5]


def test_a_dense_model_that_is_off_does_not_hold(monkeypatch):
    off = clustr.PrintedModel("4", "RetinaNet", None, "32.5", "clustr_small+retinanet", {"num_classes": 80})
    monkeypatch.setattr(clustr, "PRINTED", ())
    monkeypatch.setattr(clustr, "DENSE", (off,))
    assert not clustr.clustr().holds
