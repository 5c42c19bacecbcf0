"""``foveate compare``: from a model and images to a decision."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from foveate.adapters import find_adapter
from foveate.cli import output
from foveate.cli.arguments import add_json, add_model, positive_float, positive_int
from foveate.cli.evaluate import class_names
from foveate.cli.models import brings_weights, load_from
from foveate.report.compare import Comparison, Entry, compare
from foveate.report.compare.candidates import DEFAULT_BUDGETS, read_budgets, read_methods
from foveate.report.compare.figure import DEMONSTRATION, INTERRUPTED
from foveate.report.compare.saving import PAGE, PARTIAL, RESULTS, TABLE, as_document, check_writable
from foveate.report.compare.settings import DEFAULT_SECONDS
from foveate.report.rounding import floored
from foveate.train.classifier import predicted_classes

DESCRIPTION = """\
How much faster can a model be, how, and what does it cost? Every training-free method at every budget of MACs is
measured on your images: decisions unchanged, accuracy where labels exist, speed, memory. Without MODEL, the built-in
demonstration runs: a small model and generated scenes."""

EPILOG = f"""\
examples:
  foveate compare
  foveate compare deit_small_patch16_224 --pretrained --data photos
  foveate compare hf:facebook/deit-tiny-patch16-224 --data imagenet --methods tome evit:fuse=false --budgets 0.7 0.5
  foveate compare runs/finetune/best --data imagenette --checkpoint runs/dynamicvit/best --out report

writes to --out: {PAGE} (the report), {RESULTS}, {TABLE}. Ctrl-C keeps what is measured, exits with 130, and
--resume goes on from {PARTIAL}. docs/compare.md says how each column is measured and how one is recommended.

keys of --json: format, model, data, options, environment, demonstration, complete, entries, refused,
  recommendation {{entry, sentence, python}}. In each of the entries, the first of which is the unreduced model:
  method, label, kind, budget, counts, exact_last_block, macs, mac_ratio, params, top1, top5, agreement, kl,
  images_per_second, speed_up, speed_up_quartiles, efficiency, overhead, memory_mib, on_object, pareto, python"""

DEFAULT_LIMIT, DEMONSTRATION_LIMIT = 500, 300  # the demonstration is to take less than three minutes
UNTRAINED = "The model's weights are random (no --pretrained or --weights), so its decisions mean nothing."
INTERRUPTED_CODE = 130
PARETO = "*"


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("compare", help="from a model to a decision", description=DESCRIPTION, epilog=EPILOG)
    add_model(parser, optional=True)
    _add_data(parser)
    _add_measurement(parser)
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("foveate-report"), help="default: foveate-report"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the interrupted run in --out")
    add_json(parser)
    parser.set_defaults(run=run)


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("images")
    group.add_argument("--data", metavar="SOURCE", help="a folder of images, with or without classes; see docs/data.md")
    group.add_argument(
        "--split", metavar="NAME", help="the part of them; default: val, or all where there are no parts"
    )
    group.add_argument("--classes", metavar="FILE", type=Path, help="names of the model's classes, in its order")
    group.add_argument("--root", metavar="DIR", help="where torchvision: data are")
    group.add_argument("--label-column", metavar="NAME", help="the label of hf: data that have several")
    group.add_argument(
        "--limit",
        metavar="N",
        type=positive_int,
        help=f"images to look at, drawn from all; default: {DEFAULT_LIMIT}, {DEMONSTRATION_LIMIT} in the demonstration",
    )
    group.add_argument("--workers", metavar="N", type=int, default=0, help="processes that read images; default: 0")
    group.add_argument(
        "--max-broken", metavar="SHARE", type=float, default=0.01, help="stop above this share; default: 0.01"
    )


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared, and how long")
    group.add_argument(
        "--methods", metavar="NAME[:OPTION=VALUE,...]", nargs="+", help="default: every training-free method"
    )
    group.add_argument(
        "--budgets",
        metavar="SHARE",
        type=float,
        nargs="+",
        default=DEFAULT_BUDGETS,
        help=f"shares of the unreduced MACs; default: {' '.join(map(str, DEFAULT_BUDGETS))}",
    )
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        action="append",
        default=[],
        dest="checkpoints",
        help="a reduced and trained model that foveate.save wrote, measured as it is; may be repeated",
    )
    group.add_argument("--batch-size", metavar="N", type=positive_int, default=16, help="default: 16")
    group.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...; default: cpu")
    group.add_argument(
        "--seconds",
        metavar="S",
        type=positive_float,
        default=DEFAULT_SECONDS,
        help=f"timing of each candidate; default: {DEFAULT_SECONDS:g}",
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="draws the images of --limit; default: 0")


def run(args: argparse.Namespace) -> int:
    read_methods(args.methods)  # so that a wrong word fails before a model is loaded
    read_budgets(args.budgets)
    check_request(args)
    check_writable(args.out)
    model = None if args.model is None else asked_model(args)
    if (args.out / PARTIAL).is_file() and not args.resume:
        tell(f"{args.out / PARTIAL} of an interrupted run is begun anew; --resume would have gone on.")
    with output.phases() as progress:
        comparison = compare(model, args.data, progress=progress, store=args.out, **options(args, model))
    comparison.save(args.out)
    if args.json:
        output.print_json(as_document(comparison))
    else:
        show(comparison, args.out)
    return 0 if comparison.complete else INTERRUPTED_CODE


def check_request(args: argparse.Namespace) -> None:
    """Refuse what cannot mean anything together."""
    if args.model is None and (args.pretrained or args.weights or args.image_size or args.classes):
        raise ValueError("--pretrained, --weights, --image-size and --classes are about a MODEL. Name one.")
    if args.model is not None and args.data is None:
        raise ValueError(
            "compare needs images that the model knows, because decisions on noise mean nothing: --data DIR, a folder "
            "of some hundred images, with or without labels. Without MODEL, the built-in demonstration runs."
        )


def asked_model(args: argparse.Namespace) -> nn.Module:
    """The model, with the reduction it was saved with, if any."""
    loaded = load_from(args)
    if find_adapter(loaded.model).image_size(loaded.model) != loaded.image_size:
        raise ValueError("compare measures at the image size a model was made for; leave out --image-size.")
    if not brings_weights(args):
        tell(UNTRAINED)
    return loaded.model if loaded.own is None else loaded.own.apply_(loaded.model)


def options(args: argparse.Namespace, model: nn.Module | None) -> dict[str, Any]:
    """What ``compare`` is told by name."""
    names = ("methods", "budgets", "checkpoints", "batch_size", "device", "limit", "seconds", "seed")
    given = {name: getattr(args, name) for name in (*names, "split", "workers", "max_broken", "resume")}
    sources = {"root": args.root, "label_column": args.label_column}
    given["limit"] = args.limit or (DEMONSTRATION_LIMIT if model is None else DEFAULT_LIMIT)
    given["data_options"] = {name: value for name, value in sources.items() if value}
    if model is None:
        return given
    note = "" if brings_weights(args) else UNTRAINED
    return given | {"name": args.model, "note": note, "classes": named_classes(args, model)}


def named_classes(args: argparse.Namespace, model: nn.Module) -> list[str] | None:
    names, predicted = class_names(args), predicted_classes(model)
    if names is not None and len(names) != predicted:
        raise ValueError(f"{len(names)} classes are named, and {args.model} predicts {predicted}.")
    return names


def tell(text: str) -> None:
    """One line to stderr, away from the results."""
    print(f"foveate: {text}", file=sys.stderr)


def show(comparison: Comparison, folder: Path) -> None:
    """The table, what is to be said about it, the decision, and where the report is."""
    columns = visible_columns(comparison)
    rows = [[cell(entry) for _, cell in columns] for entry in comparison.entries]
    output.print_table(title(comparison), [name for name, _ in columns], rows, ("setting",))
    for line in remarks(comparison):
        output.say(line)
    output.say(f"\n{comparison.recommendation.sentence}")
    if comparison.recommendation.python:
        output.say("\n" + "\n".join(f"    {line}" for line in comparison.recommendation.python.splitlines()))
    output.say(f"\nReport: {folder / PAGE}")


def title(comparison: Comparison) -> str:
    data = comparison.data
    broken = f", {data['broken']} broken" if data["broken"] else ""
    return f"{comparison.model['name']} on {data['source']}, {data['images']} images{broken}"


def remarks(comparison: Comparison) -> list[str]:
    environment = comparison.environment
    threads = f"{environment['threads']} thread{'' if environment['threads'] == 1 else 's'}"
    lines = [f"{PARETO} Pareto front: no other is at least as fast and as faithful."]
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


def visible_columns(comparison: Comparison) -> list[tuple[str, Any]]:
    """(name, entry -> cell), without columns in which there is nothing."""

    def number(name: str, form: str) -> Any:
        return lambda entry: shown(getattr(entry, name), form)

    return [
        ("setting", lambda entry: f"{entry.title} {PARETO}" if entry.pareto else entry.title),
        ("MACs %", lambda entry: f"{100 * entry.mac_ratio:.1f}"),
        ("agreement %", lambda entry: f"{floored(entry.agreement):.1f}"),
        ("KL", number("kl", "{:.4f}")),
        *measured(comparison.entries, "top1", "top-1 %", "{:.1f}"),
        *measured(comparison.entries, "images_per_second", "img/s", "{:.1f}"),
        *measured(comparison.entries, "speed_up", "speed-up", "{:.2f}x"),
        *measured(comparison.entries, "overhead", "overhead", "{:.0%}"),
        *measured(comparison.entries, "memory_mib", "MiB", "{:.0f}"),
        *measured(comparison.entries, "on_object", "on object %", "{:.0f}"),
    ]


def measured(entries: Sequence[Entry], name: str, column: str, form: str) -> list[tuple[str, Any]]:
    if all(getattr(entry, name) is None for entry in entries):
        return []
    return [(column, lambda entry: shown(getattr(entry, name), form))]


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
