"""The work of ``foveate compare``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from foveate.adapters import inspect
from foveate.cli import output
from foveate.cli.evaluate import class_names, known_task, named_task
from foveate.cli.requests import load_from, read_shares, require_trained, source_options
from foveate.evaluation.columns import IN_COMPARISONS, known_columns
from foveate.models.by_name import comes_trained
from foveate.report.compare import Comparison, compare
from foveate.report.compare.candidates import read_budgets, read_methods
from foveate.report.compare.figure import DEMONSTRATION, INTERRUPTED
from foveate.report.compare.saving import PAGE, PARTIAL, RESULTS, as_document
from foveate.report.compare.served import python, sentence
from foveate.schedules_text import split_list
from foveate.storage import saved_folder
from foveate.tasks import find_task
from foveate.tuning.constraints import Constraints, parse_constraint
from foveate_cli.compare import DEFAULT_LIMIT, DEFAULT_SECONDS, DEMONSTRATION_LIMIT, DEMONSTRATION_SECONDS

INTERRUPTED_CODE = 130
PARETO = "*"


def run(args: argparse.Namespace) -> int:
    read_methods(args.methods)  # fail before a model is loaded
    args.budgets = None if args.budgets is None else read_budgets(read_shares("--budgets", args.budgets))
    check_request(args)
    check_out(args)
    asked(args)
    model = None if args.model is None else lambda: requested_model(args)
    if (args.out / PARTIAL).is_file() and not args.resume:
        warn(f"{args.out / PARTIAL} of an interrupted run will be replaced. Use --resume to continue that run.")
    with output.phases() as progress:
        comparison = compare(model, args.data, progress=progress, store=args.out, **options(args))
    comparison = replace(comparison, model=comparison.model | {"weights": origin_of_weights(args)})
    comparison.save(args.out)
    if args.json:
        output.print_json(as_document(comparison))
    else:
        show(comparison, args.out)
    return 0 if comparison.complete else INTERRUPTED_CODE


def check_request(args: argparse.Namespace) -> None:
    """Raise ``ValueError`` for options that do not work together."""
    of_model = (
        args.pretrained,
        args.weights,
        args.image_size,
        args.classes,
        args.task,
        args.task_options,
        args.prompts,
    )
    if args.model is None and any(of_model):
        raise ValueError(
            "--pretrained, --weights, --image-size, --classes, --task, --option and --prompts need a MODEL."
        )
    if args.model is not None and args.data is None:
        raise ValueError(
            "compare needs images of the kind the model was trained on, because decisions on noise are meaningless: "
            "--data DIR, a folder of some hundred images, with or without labels. Without MODEL, compare runs the "
            "built-in demonstration."
        )


def check_out(args: argparse.Namespace) -> None:
    """Raise ``ValueError`` if an earlier report would be lost; an interrupted one may be resumed."""
    if (args.out / RESULTS).is_file() and not args.overwrite and not args.resume:
        ways = "--overwrite replaces it; --out DIR writes elsewhere"
        ways += "; --resume continues it" if (args.out / PARTIAL).is_file() else ""
        raise ValueError(f"{args.out} has a report already. {ways}.")


def requested_model(args: argparse.Namespace) -> nn.Module:
    """The model, with the reduction it was saved with, if any."""
    loaded = load_from(args)
    if inspect(loaded.model).image_size != loaded.image_size:
        raise ValueError("compare uses the image size the model was built for. Leave out --image-size.")
    require_trained(loaded, args)
    return loaded.model if loaded.own is None else loaded.own


def origin_of_weights(args: argparse.Namespace) -> str:
    """Where the weights came from, for the report."""
    if args.model is None:
        return "built into foveate"
    if args.weights is not None:
        return f"the file {Path(args.weights).name}"
    if saved_folder(args.model).is_dir():
        return f"the folder {args.model}"
    if not comes_trained(args.model, args.pretrained, args.weights):
        return "random, nobody trained them"
    library, _, inner = args.model.rpartition(":")
    names = {"": "timm", "hf": "transformers"}
    return f"pretrained weights of {names.get(library, library)}: {inner}"


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``compare`` by name."""
    names = ("methods", "budgets", "checkpoints", "batch_size", "device", "limit", "seconds", "seed")
    given = {name: getattr(args, name) for name in (*names, "split", "workers", "max_broken", "resume")}
    given["limit"] = args.limit or (DEMONSTRATION_LIMIT if args.model is None else DEFAULT_LIMIT)
    given["seconds"] = args.seconds or (DEMONSTRATION_SECONDS if args.model is None else DEFAULT_SECONDS)
    given["data_options"] = source_options(args)
    given |= asked(args)
    given |= {"runtimes": split_list(args.runtimes), "precisions": split_list(args.precisions)}
    given["calibration"] = args.calibration
    if args.model is None:
        return given
    task, own = known_task(args), named_task(args)[1]
    if args.prompts is not None:
        task, own = task or "embedding", dict(own) | {"prompts": read_prompts(args.prompts)}
    elif task is None and (likely := named_task(args)[0]) is not None:
        # before the model is loaded, which then tells its task
        find_task(likely)().open_matching(args.data, args.split, class_names(args), **source_options(args))
    given |= {"task": task, "task_options": own}
    return given | {"name": args.model, "trained": not args.untrained, "classes": class_names(args)}


def asked(args: argparse.Namespace) -> dict[str, float]:
    """The bounds of ``--agreement``, ``--latency`` and ``--speedup``.

    Raises:
        ValueError: if one cannot be read, or they contradict each other.
    """
    texts = {"agreement": ">=", "latency": "<=", "speedup": ">="}
    given: dict[str, float] = {}
    for name, sign in texts.items():
        if getattr(args, name) is not None:
            given |= parse_constraint(f"{name}{sign}{getattr(args, name)}")
    if given:
        Constraints(**given)
    return given


def read_prompts(path: Path) -> list[str]:
    """The lines of a file that hold text.

    Raises:
        ValueError: if it cannot be read, or has fewer than two.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompts {path} cannot be read as UTF-8 text: {error}") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if len(prompts) < 2:
        raise ValueError(f"--prompts {path} has {len(prompts)} lines of text; zero-shot decisions need at least two.")
    return prompts


def warn(text: str) -> None:
    """Print one line to stderr, apart from the results."""
    print(f"foveate: {text}", file=sys.stderr)


def show(comparison: Comparison, folder: Path) -> None:
    """Print the table, remarks, the recommendation, and the path of the report."""
    entries = [entry.as_dict() for entry in comparison.entries]
    columns = known_columns(IN_COMPARISONS, entries)
    names = [f"{entry.title} {PARETO}" if entry.pareto else entry.title for entry in comparison.entries]
    rows = [
        [name, *(column.terminal_text(entry[column.name]) for column in columns)]
        for name, entry in zip(names, entries, strict=True)
    ]
    output.print_table(
        title(comparison), ["setting", *(column.terminal_head for column in columns)], rows, ("setting",)
    )
    for line in remarks(comparison):
        output.say(line)
    output.say(f"\n{comparison.recommendation.sentence}")
    if comparison.recommendation.python:
        output.say("\n" + "\n".join(f"    {line}" for line in comparison.recommendation.python.splitlines()))
    show_runtimes(comparison)
    output.say(f"\nReport: {folder / PAGE}")


def show_runtimes(comparison: Comparison) -> None:
    """Print the fastest in other runtimes for each share of unchanged decisions."""
    for _, one in comparison.fastest_in_runtimes():
        output.say(f"\n{sentence(one, comparison.entries[one.entry].title)}")
        code = python(one, comparison.entries[one.entry].python)
        output.say("\n".join(f"    {line}" for line in code.splitlines()))


def title(comparison: Comparison) -> str:
    data = comparison.data
    broken = f", {data['broken']} broken" if data["broken"] else ""
    return f"{comparison.model['name']} on {data['source']}, {data['images']} images{broken}"


def remarks(comparison: Comparison) -> list[str]:
    environment = comparison.environment
    threads = f"{environment['threads']} thread{'' if environment['threads'] == 1 else 's'}"
    lines = [f"{PARETO} on the Pareto front: no other setting is at least as fast and as faithful."]
    lines += [DEMONSTRATION] if comparison.demonstration else []
    lines += [] if comparison.complete else [INTERRUPTED]
    lines += [comparison.data["note"]] if comparison.data["note"] else []
    lines += [f"Not compared: {refused_text(refused)}" for refused in comparison.refused]
    return [
        *lines,
        f"{environment['cpu']}, {threads}, batch {comparison.options['batch_size']}, {environment['device']}",
    ]


def refused_text(refused: Any) -> str:
    at = "" if refused.budget is None else f" at {refused.budget:g}"
    return f"{refused.label}{at}. {refused.reason}"
