"""The work of ``foveate recover``."""

from __future__ import annotations

import argparse

from foveate.cli import output
from foveate.cli.requests import load_from, read_reductions, require_trained
from foveate.files import check_writable
from foveate.storage import check_save_folder, save
from foveate.tuning import recover
from foveate_cli.recover import DEFAULT_IMAGES

INTERRUPTED_CODE = 130


def run(args: argparse.Namespace) -> int:
    reductions = read_reductions(args)
    if len(reductions) > 1:
        raise ValueError("recover tunes one model. Give one --method.")
    check_save_folder(args.out)
    check_writable(args.out.parent)
    loaded = load_from(args, reductions)
    require_trained(loaded, args)
    model = loaded.reduced(reductions[0]) if reductions else loaded.own
    if model is None:
        raise ValueError(
            f"{args.model} is not reduced. Give --method and a schedule, such as --method Ward --budget 0.5."
        )
    with output.phases() as progress:
        recovered = recover(
            model,
            args.data,
            minutes=args.minutes,
            steps=args.steps,
            batch_size=args.batch_size,
            lr=args.lr,
            limit=args.limit or DEFAULT_IMAGES,
            split=args.split,
            workers=args.workers,
            seed=args.seed,
            precision=args.precision,
            progress=progress,
        )
    save(recovered.model, args.out)
    if args.json:
        output.print_json(recovered.as_dict())
    else:
        output.say(f"{recovered}." if recovered.complete else f"Interrupted. The best so far: {recovered}.")
        if not recovered.steps:
            output.say("No tuning was better than none: the weights are as they were. Try more minutes or more images.")
        output.say(f'\nWrote {args.out}. Load it with fv.load("{args.out}").')
    return 0 if recovered.complete else INTERRUPTED_CODE
