"""Fine-tuning with EViT at keep rate 0.5: how much of the lost accuracy comes back?

    FOVEATE_ASSETS=... python benchmarks/evit_recovery.py [--steps 420] [--keep 0.5] [--kl 4] [--lr 5e-5] [--control]

A short run of the recipe `evit-finetune` on the pretrained ViT-Tiny. Targets are the labels and the unreduced model's
predictions over all of ImageNet's thousand classes (`data.classes`, `objective.self_kl`; --kl 0 uses only labels).
Accuracies are over Imagenette's ten classes. `--control` fine-tunes the unreduced model for as many steps, which shows
how much of a gain comes from the data.
"""

from __future__ import annotations

from imagenette import SHORT, class_file, folder, images, parser, report, ten_way, ten_way_vit_tiny, train
from photographs import vit_tiny

import foveate as fv


def main() -> None:
    made = parser(__doc__ or "", steps=420)
    made.add_argument("--keep", type=float, default=0.5)
    made.add_argument("--kl", type=float, default=4.0, help="weight of the unreduced model's prediction as a target")
    made.add_argument("--lr", type=float, default=5e-5)
    made.add_argument("--control", action="store_true", help="fine-tune the unreduced model too")
    args = made.parse_args()
    schedule = fv.KeepRate(args.keep, blocks=(3, 6, 9))
    with folder(args.out) as place:
        top1 = images(args, place).top1
        before = top1(ten_way_vit_tiny())
        without = top1(fv.reduce_(ten_way_vit_tiny(), fv.EViT(), schedule))
        start = fv.save(vit_tiny(), place / "start")
        shared = (f"model.name={start}", f"data.classes={class_file(place)}", *SHORT, f"optimizer.lr={args.lr}")
        warm = (f"reduction.keep_rate={args.keep}", "reduction.warmup_start=0", "reduction.warmup_epochs=0.3")
        train("evit-finetune", place / "tuned", args, *shared, *warm, f"objective.self_kl={args.kl}")
        after = top1(ten_way(fv.load(place / "tuned" / "model")))
        recovered = (after - without) / (before - without)
        report(keep=args.keep, unreduced=before, without_training=without, tuned=after, recovered=round(recovered, 3))
        if args.control:
            plain = ("reduction.method=none", "reduction.warmup_start=0", "reduction.warmup_epochs=0")
            train("evit-finetune", place / "control", args, *shared, *plain, f"objective.self_kl={args.kl}")
            report(unreduced_tuned=top1(ten_way(fv.load(place / "control" / "model"))))


if __name__ == "__main__":
    main()
