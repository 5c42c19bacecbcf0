"""The work of ``foveate models``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
from collections.abc import Sequence

from foveate.adapters.survey import ModelState, survey
from foveate.cli import output

COLUMNS = ("library", "group", "supported", "of", "why the others are refused, or the family")


def run(args: argparse.Namespace) -> int:
    for library in ("timm", "transformers"):
        with contextlib.suppress(ImportError):  # without an extra, its classes are not listed
            importlib.import_module(library)
    if args.filter == "":
        raise ValueError("FILTER is empty. Leave it out to list all groups.")
    found = survey(args.filter)
    if not found:
        raise ValueError(f"No model has {args.filter!r} in its name. `foveate models` lists all groups.")
    if args.json:
        output.print_json([dataclasses.asdict(state) for state in found])
    elif args.markdown:
        print(as_markdown(found), classes_as_markdown(found), sep="\n", end="")
    elif args.filter is None:
        output.print_table(_title(found), COLUMNS, groups(found), ("library", "group", COLUMNS[-1]))
    else:
        rows = [(state.name, state.library, state.state, state.reason) for state in found]
        columns = ("name", "library", "state", "family, or why not")
        output.print_table(_title(found), columns, rows, columns)
    return 0


def groups(states: Sequence[ModelState]) -> list[tuple[str, ...]]:
    """One row for each group: library, group, supported, all, and why."""
    by_group: dict[tuple[str, str], list[ModelState]] = {}
    for state in states:
        by_group.setdefault((state.library, state.group), []).append(state)
    rows: list[tuple[str, ...]] = []
    for (library, group), members in by_group.items():
        refused = [state for state in members if state.state == "refused"]
        why = "; ".join(dict.fromkeys(state.reason for state in refused or members))
        rows.append(
            (library, group if library == "timm" else "", str(len(members) - len(refused)), str(len(members)), why)
        )
    return rows


def as_markdown(states: Sequence[ModelState]) -> str:
    """The groups of timm as a table for documents."""
    lines = ["| timm module | supported | of | why others are not, or the family |", "|---|---|---|---|"]
    for library, group, supported, all_of_them, why in groups(states):
        if library == "timm":
            lines.append(f"| `{group}` | {supported} | {all_of_them} | {why} |")
    timm_states = [state for state in states if state.library == "timm"]
    good = sum(state.state == "supported" for state in timm_states)
    return "\n".join([*lines, f"| all | {good} | {len(timm_states)} | |"]) + "\n"


def classes_as_markdown(states: Sequence[ModelState]) -> str:
    """The classes of transformers as a table for documents, those of one family or reason in a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for state in states:
        if state.library == "transformers":
            rows.setdefault((state.state, state.reason), []).append(f"`{state.name}`")
    lines = ["| state | classes | family, or why not |", "|---|---|---|"]
    lines += [f"| {state} | {', '.join(names)} | {reason} |" for (state, reason), names in sorted(rows.items())[::-1]]
    return "\n".join(lines) + "\n"


def _title(states: Sequence[ModelState]) -> str:
    good = sum(state.state == "supported" for state in states)
    return f"{good} of {len(states)} models are supported"
