"""DynamicViT's printed costs, counted from the models."""

import dataclasses

import pytest

import foveate as fv
from foveate.tables import dynamic_vit

# GMACs, model by model
TRUE = {
    "DeiT-S": [4.599, 4.041, 3.463, 2.981, 2.565, 2.229],
    "LV-ViT-S": [6.552, 5.876, 5.206, 4.650, 4.173, 3.790],
    "DeiT-S, one stage": [2.918],
    "DeiT-S, two stages": [2.884],
    "DeiT-S, three stages": [2.981],
}


@pytest.fixture(scope="module")
def table():
    return dynamic_vit.dynamicvit()


def test_every_row_holds(table):
    assert table.holds
    assert "15 of 15 hold" in table.note
    assert all(row.holds is True for row in table.rows)


@pytest.mark.parametrize("label", TRUE)
def test_true_costs_are_the_known_ones(table, label):
    counted = [row.cells[4] for row in table.rows if row.cells[0] == label]
    assert counted == pytest.approx(TRUE[label], abs=1.5e-3)


def test_the_other_choice_of_two_stages():
    two = next(p for p in dynamic_vit.PRINTED if p.label == "DeiT-S, two stages")
    other = dataclasses.replace(two, sites=(2, 10))
    assert fv.cost(dynamic_vit.build(other)).macs / 1e9 == pytest.approx(2.905, abs=1e-3)


def test_a_wrong_number_is_seen():
    printed = dataclasses.replace(dynamic_vit.PRINTED[0], gmacs="4.4")
    for macs, holds in ((4_599_000_000, False), (4_500_000_000, True)):
        assert dynamic_vit.row(printed, dynamic_vit.figure(printed, macs)).holds is holds
