"""Tables 2-5 of the Token Pooling supplement (Marin et al., 2021) as printed, mistakes included: counts and costs.

They are kept in two CSV files. Costs stay text: "1.0" and "1.00" are compared to different digits. The paper prints
weighted and unweighted clustering at the same cost throughout, so each pair is listed once.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

WIDTHS = {"DeiT-Ti": 192, "DeiT-e252": 252, "DeiT-e318": 318, "DeiT-S": 384}
"""Embedding dimension of each model."""
UNREDUCED = {"DeiT-Ti": "1.25", "DeiT-e252": "2.07", "DeiT-e318": "3.21", "DeiT-S": "4.60"}
"""The DeiT column of table 2."""


@dataclass(frozen=True)
class Level:
    """One sparsity level of tables 3-5: a list of counts, and its costs in GMACs with the clustering's share."""

    table: int
    model: str
    number: int
    listed: tuple[int, ...]  # patch tokens after each block
    power: str
    kmedoids: str
    kmeans: str | None  # table 3 only
    accuracies: tuple[float, ...]  # PoWER-BERT, then the two K-Medoids; they identify the level of a row of table 2


@dataclass(frozen=True)
class TradeOff:
    """One row of table 2, and the levels (model, number) its two costs belong to."""

    power: str
    power_level: tuple[str, int]
    kmedoids: str
    kmedoids_level: tuple[str, int]
    accuracies: tuple[float, ...]


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines()))


def _level(row: dict[str, str]) -> Level:
    listed, costs = tuple(map(int, row["listed"].split())), (row["power"], row["kmedoids"], row["kmeans"] or None)
    return Level(int(row["table"]), row["model"], int(row["number"]), listed, *costs, _numbers(row["accuracies"]))


def _trade_off(row: dict[str, str]) -> TradeOff:
    power, kmedoids = row["power_level"].split(), row["kmedoids_level"].split()
    levels = ((power[0], int(power[1])), (kmedoids[0], int(kmedoids[1])))
    return TradeOff(row["power"], levels[0], row["kmedoids"], levels[1], _numbers(row["accuracies"]))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


LEVELS = tuple(map(_level, _rows("token_pooling_tables_3_to_5.csv")))
TRADE_OFFS = tuple(map(_trade_off, _rows("token_pooling_table_2.csv")))
"""All rows but one pair two costs of the same level. For one PoWER-BERT, table 2 prints 78.4 and table 4 78.3."""
