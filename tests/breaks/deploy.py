"""Breaks of exports and of runtimes."""

from __future__ import annotations

from .entry import TRAVEL, Break, broken

EXPORT, RUNTIMES = "deploy/test_export.py::test_", "deploy/test_runtimes.py::test_"
QUANTIZE = "deploy/test_quantize.py::test_"

BREAKS: list[Break] = [
    broken(
        "a file of an export is not compared with its checksum",
        "deploy/manifest.py",
        "        check_file(folder / name, expected, AGAIN)",
        "        pass",
        EXPORT + "a_damaged_or_foreign_folder_is_refused",
    ),
    broken(
        "code in an exported folder runs unasked",
        "deploy/loading.py",
        "    if target.runs_code and not trusted:",
        "    if False:",
        EXPORT + "outputs_with_names_and_bytes_as_input",
    ),
    broken(
        "OpenVINO ignores the batch size that it is loaded for",
        "deploy/loading.py",
        "        if self.batch_size not in (None, len(images)):",
        "        if False:",
        EXPORT + "a_model_loaded_for_one_batch_size_computes_the_same_and_takes_no_other",
    ),
    broken(
        "every image of an export may differ",
        "deploy/parity.py",
        "        return self.flipped <= FLIPS * self.images",
        "        return True",
        EXPORT + "flips_are_counted_and_only_a_few_are_accepted",
    ),
    broken(
        "scores are quantized",
        "deploy/quantize.py",
        "    return [op for op in (before | after).values() if",
        "    return [op for op in after.values() if",
        QUANTIZE + "all_that_chooses_tokens_and_no_layer_is_left_alone",
    ),
    broken(
        "efficiency is not paired within rounds",
        "deploy/speed.py",
        "        return [found[base] / found[variant] for found in timed]",
        "        return [timed[0][base] / found[variant] for found in timed]",
        RUNTIMES + "ratios_are_paired_within_rounds",
    ),
    broken(
        "a compiled graph is bound to the batch it was made with",
        "methods/tome.py",
        "metric = view.keys.sum(dim=1)  #",
        "metric = view.keys.sum(dim=1) * int(view.keys.shape[0] > 2 or 1)  #",
        TRAVEL + "one_compiled_graph_serves_every_batch",
        only="tome",
    ),
]
