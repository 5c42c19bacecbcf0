"""A detector with clustr_tiny learns the built-in scenes of several objects.

    python benchmarks/objects.py [--head retinanet] [--steps 4000] [--size 128]

Trains from scratch on scenes:objects and evaluates on 1,000 scenes that it has not seen; the goal is an AP50 above 70.
``--after 4000`` begins a second cycle with the weights of a run of 4,000 steps.
"""

from __future__ import annotations

from pathlib import Path

from dense_runs import Clock, arguments, cell, evaluated, head_options, trained
from recording import record

TASKS = {"retinanet": "detection", "mask-rcnn": "instance-segmentation"}
BATCH, UNSEEN = 8, 1000
FIGURES = ("box_ap", "box_ap50", "mask_ap", "mask_ap50")


def main() -> None:
    parser = arguments(__doc__ or "", "objects", "objects.csv")
    parser.add_argument("--head", choices=TASKS, default="retinanet")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4000, help="of 8 scenes")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--channels", type=int, default=96)
    parser.add_argument("--sampled", type=int, default=64, help="proposals that mask-rcnn learns from (default: 64)")
    parser.add_argument("--precision", choices=("no", "bf16"), default="no", help="bf16: half as long with mask-rcnn")
    parser.add_argument("--after", type=int, default=0, help="steps of the run in --out whose weights to begin with")
    args = parser.parse_args()
    run = args.head if not args.after else f"{args.head}-after-{args.after}"
    clock = Clock(args.out / f"{run}-seconds")
    history = trained(
        f"clustr_tiny+{args.head}",
        f"scenes:objects,size={args.size}",
        args.out / run,
        {
            "model.weights": first_weights(args.out / args.head) if args.after else "",
            "data.task": TASKS[args.head],
            "data.batch_size": BATCH,
            "augmentation.flip": 0.5,
            "model.options": {
                "image_size": [args.size, args.size],
                "head": head_options(args.head, args.channels, args.sampled),
            },
            "optimizer.lr": args.lr,
            "optimizer.precision": args.precision,
            "optimizer.weight_decay": 0.05,
            "optimizer.clip_norm": 1.0,
            "schedule.steps": args.steps,
            "schedule.warmup_epochs": 0.0,
            "schedule.warmup_steps": min(200, args.steps // 10),
            "schedule.min_lr": args.lr / 100,
        },
        args,
    )
    minutes = clock.minutes()
    rows = []
    for entry in evaluated(history):
        values = [cell(entry["val"].get(name)) for name in FIGURES]
        rows.append(
            [args.head, args.after + entry["step"], *values, f"{minutes:.0f}" if entry is history[-1] else None]
        )
    print(f"{args.head}: {history[-1]['val']}; {minutes:.0f} minutes")
    if args.csv is not None:
        sample = f"clustr_tiny, {args.size} px, pyramid of {args.channels} channels, {UNSEEN} unseen scenes"
        sample += "" if args.precision == "no" else f", trained in {args.precision}"
        record(args.csv, ("head", "steps", *FIGURES, "minutes"), rows, f"{sample}, seed {args.seed}")


def first_weights(run: Path) -> str:
    """The weights at the end of an earlier run."""
    return str(next((run / "model").glob("*.safetensors")))


if __name__ == "__main__":
    main()
