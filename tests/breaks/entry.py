"""What one deliberate break is, and short names for the test files that breaks name most."""

from __future__ import annotations

from dataclasses import dataclass

ASSIGNMENT, ATTENTION = "core/test_assignment.py::test_", "core/test_attention.py::test_"
CLUSTER, WARD, SELECT = "core/test_cluster.py::test_", "core/test_ward.py::test_", "core/test_select.py::test_"
OFFSETS, GRAPHS = "core/test_offsets.py::test_", "core/test_graphs.py::test_"
SUMS = "core/test_member_sums.py::test_"
OUTPUTS, TRAVEL = "contract/test_outputs.py::test_", "contract/test_travel.py::test_"
GRID, SYSTEMS = "contract/test_grid.py::test_", "adapters/test_systems.py::test_"
TOWERS, BACKBONES = "adapters/test_hf_towers.py::test_", "adapters/test_hf_backbones.py::test_"
EMBEDDING = "tasks/test_embedding.py::test_"
HEADS, TIMM, UNIT = "adapters/test_heads.py::test_", "adapters/test_timm.py::test_", "adapters/test_unit_qk.py::test_"
DAMPING = "adapters/test_size_damping.py::test_"
REFUSED, HVT = "adapters/test_refused_models.py::test_", "models/test_hvt_models.py::test_"
SCHEDULES, REDUCTIONS, STORAGE = "test_schedules.py::test_", "test_reductions.py::test_", "test_storage.py::test_"
REGISTRY, COMMAND = "methods/test_registry.py::test_", "cli/test_cli_main.py::test_"
SIDE_BY_SIDE, COLUMNS = "evaluation/test_side_by_side.py::test_", "evaluation/test_columns.py::test_"
LOOP, DISTILL, TASKS = "training/test_loop.py::test_", "training/test_distill.py::test_", "tasks/test_tasks.py::test_"
POOLING_TABLE = "tables/test_token_pooling_table.py"


@dataclass(frozen=True)
class Break:
    """One change of the source, and the tests of which at least one has to fail."""

    name: str
    file: str  # below src
    old: str  # occurs once in the file
    new: str
    fails: tuple[str, ...]  # below tests
    only: str = ""  # pytest's -k, where a test has many cases that cannot notice


def broken(name: str, file: str, old: str, new: str, *fails: str, only: str = "") -> Break:
    """A break of a file below src/foveate, or of one of the command line, ``foveate_cli/...``."""
    return Break(name, file if file.startswith("foveate_cli/") else f"foveate/{file}", old, new, fails, only)
