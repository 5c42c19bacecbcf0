"""Breaks of runs over many images."""

from __future__ import annotations

from .entry import Break, broken

RUNS, PREDICTOR, FSDP = "scale/test_runs.py::test_", "scale/test_predictor.py::test_", "adapters/test_fsdp.py::test_"

BREAKS: list[Break] = [
    broken(
        "a damaged part counts as finished",
        "scale/manifest.py",
        "        if footer is None:\n            continue",
        "        if footer is None:\n            footer = (job, rows or 0, 0) if path.is_file() else None\n"
        "        if footer is None:\n            continue",
        RUNS + "damaged_parts_are_written_again",
    ),
    broken(
        "a part of another run is taken",
        "scale/manifest.py",
        "        if footer[0] != job:",
        "        if False:",
        RUNS + "a_part_of_another_run_is_refused",
    ),
    broken(
        "a resumed run does everything again",
        "scale/run.py",
        "    todo = [part for part in range(len(parts)) if part not in finished]",
        "    todo = list(range(len(parts)))",
        RUNS + "a_resumed_run_adds_what_is_missing_and_keeps_what_is_there",
    ),
    broken(
        "keys that repeat are accepted",
        "scale/parts.py",
        "    if (counts > 1).any():",
        "    if False:",
        RUNS + "keys_that_repeat_are_named",
    ),
    broken(
        "a broken image has a prediction",
        "scale/predictor.py",
        "        classes[broken] = -1",
        "        pass",
        PREDICTOR + "broken_images_are_rows_with_a_reason",
    ),
    broken(
        "outputs that are not finite are written",
        "scale/predictor.py",
        "            if not np.isfinite(found[place]).all():",
        "            if False:",
        PREDICTOR + "outputs_that_are_not_finite_are_errors_of_their_images",
    ),
    broken(
        "a predictor carries its model to other processes",
        "scale/predictor.py",
        '        return self.__dict__ | {"_built": []}',
        "        return self.__dict__",
        PREDICTOR + "it_is_pickled_without_a_model_and_builds_it_where_it_runs",
    ),
    broken(
        "the last part is forgotten",
        "scale/parts.py",
        "else -(-len(self.data) // self.size)",
        "else len(self.data) // self.size",
        RUNS + "the_division_covers_every_image_once",
    ),
    broken(
        "a sharded model is reduced",
        "adapters/reduced.py",
        "    if fsdp is not None and any(",
        "    if False and any(",
        FSDP + "a_sharded_model_is_neither_reduced_nor_restored",
    ),
]
