"""Breaks of the limits of data."""

from __future__ import annotations

from .entry import Break, broken

LIMITS = "data/test_limits.py::test_"

BREAKS: list[Break] = [
    broken(
        "an image in a tar file may claim any size",
        "data/shards.py",
        '                IMAGE_BYTES.check(entry.size, f"{shard}/{entry.name} claims {entry.size} bytes")\n',
        "",
        LIMITS + "members_that_claim_too_much",
    ),
    broken(
        "a long name in a tar file may claim any size",
        "data/shards.py",
        "        if found.type in LONG_NAMES:",
        "        if False:",
        LIMITS + "members_that_claim_too_much",
    ),
    broken(
        "a pattern may stand for any number of shards",
        "data/shards.py",
        "    if len(sizes) > MOST_BRACES:",
        "    if False:",
        LIMITS + "patterns_of_too_many_shards",
    ),
    broken(
        "only silence is too slow",
        "data/http.py",
        "            if self.received < self.slowest * self.waited:",
        "            if False:",
        LIMITS + "a_server_that_sends_a_byte_now_and_then",
    ),
    broken(
        "a body may be endless",
        "data/http.py",
        '        SHARD_BYTES.check(self.total, f"The server has sent {self.total} bytes for one shard")\n',
        '        SHARD_BYTES.check(self.total // 10, "The server has sent too much")\n',
        LIMITS + "a_body_that_never_ends",
    ),
    broken(
        "redirects lead anywhere",
        "data/http.py",
        '        if after not in (before, "https"):',
        "        if False:",
        LIMITS + "redirects_to_another_scheme",
    ),
    broken(
        "a table may name any file",
        "data/limits.py",
        ".startswith(roots):",
        '.startswith("/"):',
        LIMITS + "rows_that_name_files_elsewhere",
    ),
    broken(
        "a pipe is read",
        "data/folder.py",
        "    if not stat.S_ISREG(path.stat().st_mode):",
        "    if path.is_fifo() and False:",
        LIMITS + "files_that_are_no_images_do_not_hang",
        only="device",
    ),
    broken(
        "links are walked as often as they are met",
        "data/folder.py",
        "            folders.clear()\n            continue\n",
        "            folders.clear()\n",
        LIMITS + "trees_of_links_end",
    ),
    broken(
        "a failed export leaves an empty folder",
        "files.py",
        "            for place in missing:\n                place.rmdir()\n        raise",
        "            pass\n        raise",
        "deploy/test_export.py::test_an_export_that_differs_is_refused_with_its_first_block_and_nothing_is_left",
    ),
    broken(
        "a model with NaN weights is drawn",
        "drawing/inputs.py",
        "    _check_weights(model)\n",
        "",
        "drawing/test_show_command.py::test_a_model_with_nan_weights_is_not_drawn",
    ),
    broken(
        "repeats are bounded once the model is built",
        "training/local_checks.py",
        '    REPEATS.check(config.augmentation.repeats, f"augmentation.repeats is {config.augmentation.repeats}")\n',
        "",
        "cli/test_order_of_checks.py::test_what_is_local_is_checked_before_a_model_is_built",
        only="repeats",
    ),
    broken(
        "entries of COCO files are not checked",
        "data/coco.py",
        """_check_row(row, needed, f"{file}: entry {place} of {name!r}")""",
        "pass",
        "fuzz/test_fuzz.py::test_mended_files",
        only="COCO",
    ),
    broken(
        "a model on the meta device is filled",
        "storage.py",
        "if any(parameter.is_meta for parameter in model.parameters()):",
        "if False:",
        "fuzz/test_fuzz.py::test_mended_calls",
        only="meta_model",
    ),
]
