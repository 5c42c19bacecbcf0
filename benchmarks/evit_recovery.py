"""Fine-tuning with EViT at keep rate 0.5: how much of the accuracy that is lost without training comes back?

    FOVEATE_ASSETS=... python benchmarks/evit_recovery.py [--steps 420] [--keep 0.5] [--kl 1] [--control]

The pretrained ViT-Tiny with its classifier cut to Imagenette's ten classes, by the recipe `evit-finetune` in short, and
with the unreduced model's own predictions as a second target (`objective.self_kl`; --kl 0: labels alone).
`--control` fine-tunes the unreduced model for as many steps, which says how much of a gain is the data's.
"""

from __future__ import annotations

import torch
from imagenette import SHORT, data, folder, parser, say, ten_way_vit_tiny, train
from torch import nn

import foveate as fv
from foveate.data import Loader, open_data
from foveate.data.preprocessing import Preprocessing
from foveate.train.evaluate import evaluate_side_by_side


def main() -> None:
    made = parser(__doc__ or "", steps=420)
    made.add_argument("--keep", type=float, default=0.5)
    made.add_argument("--kl", type=float, default=1.0, help="weight of the unreduced model's prediction as a target")
    made.add_argument("--lr", type=float, default=1e-4)
    made.add_argument("--control", action="store_true", help="fine-tune the unreduced model too")
    args = made.parse_args()
    schedule = fv.KeepRate(args.keep, blocks=(3, 6, 9))
    with folder(args.out) as place:
        before = top1(ten_way_vit_tiny())
        without = top1(fv.reduce_(ten_way_vit_tiny(), fv.EViT(), schedule))
        start = fv.save(ten_way_vit_tiny(), place / "start")
        warm = (f"reduction.keep_rate={args.keep}", "reduction.warmup_start=0", "reduction.warmup_epochs=0.3")
        rate = (f"optimiser.lr={args.lr}", f"objective.self_kl={args.kl}")
        after = train("evit-finetune", place / "tuned", args, f"model.name={start}", *warm, *SHORT, *rate).best
        assert after is not None
        recovered = (after - without) / (before - without)
        say(keep=args.keep, unreduced=before, without_training=without, tuned=after, recovered=round(recovered, 3))
        if args.control:
            plain = ("reduction.method=none", "reduction.warmup_start=0", "reduction.warmup_epochs=0")
            control = train("evit-finetune", place / "control", args, f"model.name={start}", *plain, *SHORT)
            say(unreduced_tuned=control.best)


def top1(model: nn.Module) -> float:
    val = open_data(data(), "val")
    loader = Loader(val, Preprocessing.of(model).evaluation(), 50, seed=0, train=False)
    figures = evaluate_side_by_side({"model": model}, loader.epoch(0), torch.device("cpu"))["model"]
    assert figures.top1 is not None
    return figures.top1


if __name__ == "__main__":
    main()
