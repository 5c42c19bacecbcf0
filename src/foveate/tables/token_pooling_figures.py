"""Tables 2-5 of the Token Pooling supplement (Marin et al., 2021) as printed, mistakes included: counts and costs.

Costs stay text: "1.0" and "1.00" are judged to different digits. Weighted and unweighted clustering are printed at the
same cost throughout, so each pair is written down once.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDTHS = {"DeiT-Ti": 192, "DeiT-e252": 252, "DeiT-e318": 318, "DeiT-S": 384}
"""Embedding dimension of each model."""


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
    accuracies: tuple[float, float, float]  # PoWER-BERT, then the two K-Medoids; what table 2's rows are found by


@dataclass(frozen=True)
class TradeOff:
    """One row of table 2, and the levels (model, number) its two costs belong to."""

    power: str
    power_level: tuple[str, int]
    kmedoids: str
    kmedoids_level: tuple[str, int]
    accuracies: tuple[float, float, float]


UNREDUCED = {"DeiT-Ti": "1.25", "DeiT-e252": "2.07", "DeiT-e318": "3.21", "DeiT-S": "4.60"}
"""The DeiT column of table 2."""


def _trade_off(power: str, kmedoids: str, accuracies: tuple[float, float, float], model: str, number: int) -> TradeOff:
    """A row of table 2 whose costs belong to one model, as all but one do."""
    return TradeOff(power, (model, number), kmedoids, (model, number), accuracies)


TRADE_OFFS = (
    _trade_off("0.46", "0.48", (65.0, 68.5, 69.4), "DeiT-e252", 7),
    _trade_off("0.55", "0.57", (68.0, 70.9, 71.7), "DeiT-e252", 6),
    _trade_off("0.70", "0.73", (71.7, 73.6, 74.0), "DeiT-e252", 5),
    _trade_off("0.89", "0.93", (72.0, 74.6, 75.0), "DeiT-e318", 6),
    _trade_off("0.96", "1.00", (74.8, 75.9, 76.4), "DeiT-e252", 4),
    _trade_off("1.05", "1.11", (75.4, 76.4, 76.6), "DeiT-e252", 3),
    _trade_off("1.19", "1.25", (76.6, 77.0, 77.2), "DeiT-e252", 2),
    _trade_off("1.38", "1.46", (77.1, 77.4, 77.6), "DeiT-e252", 1),
    _trade_off("1.46", "1.52", (77.4, 78.4, 78.9), "DeiT-e318", 4),
    _trade_off("1.62", "1.68", (78.4, 78.9, 79.2), "DeiT-e318", 3),  # table 4 prints 78.3 for its PoWER-BERT
    _trade_off("1.81", "1.88", (78.8, 79.3, 79.4), "DeiT-e318", 2),
    TradeOff("2.11", ("DeiT-e318", 1), "2.13", ("DeiT-S", 4), (79.3, 79.9, 80.1)),
    _trade_off("2.27", "2.35", (79.4, 80.1, 80.4), "DeiT-S", 3),
    _trade_off("2.52", "2.61", (80.0, 80.5, 80.6), "DeiT-S", 2),
    _trade_off("2.93", "3.04", (80.6, 80.7, 80.7), "DeiT-S", 1),
    _trade_off("4.28", "4.44", (81.2, 81.4, 81.2), "DeiT-S", 0),
)

# counts, PoWER-BERT, K-Medoids, K-Means, accuracies; level 0 first
_PrintedLevel = tuple[tuple[int, ...], str, str, str | None, tuple[float, float, float]]

_TABLE_3: tuple[_PrintedLevel, ...] = (
    ((196, 196, 195, 194, 189, 180, 173, 173, 173, 173, 173), "4.3", "4.4 (+0.1)", "4.7 (+0.4)", (81.2, 81.4, 81.2)),
    ((196, 195, 193, 188, 169, 140, 121, 110, 73, 38, 7, 0), "2.9", "3.0 (+0.1)", "3.3 (+0.4)", (80.6, 80.7, 80.7)),
    ((196, 195, 190, 177, 141, 108, 84, 69, 35, 18, 3, 0), "2.5", "2.6 (+0.1)", "2.8 (+0.3)", (80.0, 80.5, 80.6)),
    ((196, 194, 187, 163, 118, 85, 58, 47, 20, 12, 2, 0), "2.3", "2.3 (+0.08)", "2.5 (+0.2)", (79.4, 80.1, 80.4)),
    ((196, 193, 179, 142, 97, 64, 46, 34, 13, 9, 1, 0), "2.1", "2.1 (+0.07)", "2.3 (+0.2)", (78.8, 79.9, 80.1)),
    ((194, 183, 142, 89, 41, 20, 10, 7, 0, 0, 0, 0), "1.5", "1.6 (+0.05)", "1.7 (+0.2)", (76.2, 77.8, 78.1)),
    ((186, 162, 102, 56, 13, 4, 2, 2, 0, 0, 0, 0), "1.2", "1.3 (+0.04)", "1.4 (+0.2)", (73.3, 75.4, 75.7)),
    ((162, 129, 66, 33, 4, 1, 1, 0, 0, 0, 0, 0), "1.0", "1.0 (+0.03)", "1.1 (+0.1)", (69.6, 72.3, 73.0)),
)
_TABLE_4: tuple[_PrintedLevel, ...] = (
    ((196, 196, 196, 194, 192, 184, 181, 181, 170, 170, 170, 170), "3.0", "3.1 (+0.1)", None, (80.1, 80.1, 80.0)),
    ((196, 195, 195, 190, 171, 147, 132, 122, 66, 43, 15, 0), "2.1", "2.2 (+0.1)", None, (79.3, 79.6, 79.7)),
    ((196, 195, 193, 180, 143, 109, 92, 77, 40, 21, 4, 0), "1.8", "1.9 (+0.09)", None, (78.8, 79.3, 79.4)),
    ((196, 195, 190, 165, 119, 84, 65, 50, 26, 14, 3, 0), "1.6", "1.7 (+0.07)", None, (78.3, 78.9, 79.2)),
    ((196, 194, 184, 149, 97, 65, 47, 33, 12, 9, 2, 0), "1.5", "1.5 (+0.06)", None, (77.4, 78.4, 78.9)),
    ((196, 186, 153, 93, 40, 15, 12, 9, 0, 0, 0, 0), "1.1", "1.1 (+0.05)", None, (74.5, 76.2, 76.8)),
    ((193, 173, 109, 52, 16, 4, 4, 4, 0, 0, 0, 0), "0.89", "0.93 (+0.04)", None, (72.0, 74.6, 75.0)),
    ((183, 145, 80, 33, 5, 1, 1, 2, 0, 0, 0, 0), "0.75", "0.78 (+0.03)", None, (69.4, 72.1, 72.6)),
)
_TABLE_5: tuple[_PrintedLevel, ...] = (
    ((196, 196, 196, 195, 193, 189, 177, 177, 177, 177, 177, 177), "2.0", "2.1 (+0.1)", None, (78.0, 77.7, 77.9)),
    ((196, 196, 195, 189, 176, 161, 123, 122, 76, 48, 17, 0), "1.4", "1.5 (+0.07)", None, (77.1, 77.4, 77.6)),
    ((196, 196, 193, 179, 154, 123, 88, 79, 39, 22, 5, 0), "1.2", "1.3 (+0.06)", None, (76.6, 77.0, 77.2)),
    ((196, 195, 188, 167, 131, 96, 63, 52, 13, 11, 2, 0), "1.1", "1.1 (+0.05)", None, (75.4, 76.4, 76.6)),
    ((196, 194, 181, 147, 111, 75, 48, 36, 5, 7, 2, 0), "0.96", "1.0 (+0.04)", None, (74.8, 75.9, 76.4)),
    ((196, 187, 129, 88, 54, 20, 10, 10, 0, 1, 0, 0), "0.70", "0.73 (+0.03)", None, (71.7, 73.6, 74.0)),
    ((194, 163, 83, 44, 22, 6, 1, 3, 0, 0, 0, 0), "0.55", "0.57 (+0.02)", None, (68.0, 70.9, 71.7)),
    ((188, 122, 58, 28, 12, 2, 0, 2, 0, 0, 0, 0), "0.46", "0.48 (+0.02)", None, (65.0, 68.5, 69.4)),
)

LEVELS = tuple(
    Level(table, model, number, *printed)
    for table, model, rows in ((3, "DeiT-S", _TABLE_3), (4, "DeiT-e318", _TABLE_4), (5, "DeiT-e252", _TABLE_5))
    for number, printed in enumerate(rows)
)
