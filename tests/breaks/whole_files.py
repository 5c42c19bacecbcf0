"""Breaks of files that are whole or not there, and of exit codes."""

from __future__ import annotations

from .entry import COMMAND, Break, broken

FILES, FULL_DISK = "test_files.py::test_", "test_full_disk.py::test_"

BREAKS: list[Break] = [
    broken(
        "a data worker holds the lock of its run",
        "files.py",
        "        os.close(_HELD.pop())",
        "        _HELD.pop()",
        FILES + "a_second_process_is_refused_until_the_first_one_ends_however_that_is",
    ),
    broken(
        "what killed writers left stays",
        "files.py",
        "    remove_left_over(last.parent, re.escape(last.name))",
        "    pass",
        FILES + "what_a_killed_writer_left_is_removed_by_the_next_success",
    ),
    broken(
        "a writer at work is taken for a killed one",
        "files.py",
        "            elif (descriptor := _take_lock(path / LOCK, wait=False)) is not None:",
        "            elif (descriptor := os.open(path, os.O_RDONLY)) is not None:",
        FILES + "a_writer_at_work_is_left_alone",
    ),
    broken(
        "a file is replaced before the others are written",
        "files.py",
        "                force_to_disk(temporary)\n",
        "                force_to_disk(temporary)\n                temporary.replace(last.with_name(temporary.name))\n",
        FULL_DISK + "every_write_of_a_comparison",
    ),
    broken(
        "the log of a resumed run is not written again",
        "training/loop.py",
        "            self._write_log()  # of a resumed run, whose log may be older than its checkpoint\n",
        "",
        FULL_DISK + "every_write_of_a_training",
    ),
    broken(
        "a bug exits with 1, which means a result that does not hold",
        "foveate_cli/main.py",
        "        return BAD_INPUT if known else BUG",
        "        return BAD_INPUT if known else 1",
        COMMAND + "a_bug_is_not_reported_as_wrong_input_nor_as_a_result",
    ),
]
