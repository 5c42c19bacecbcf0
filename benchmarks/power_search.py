"""PoWER-BERT's search on a pretrained ViT-Tiny: does it leave the mass it is asked for, and are its counts any good?

    FOVEATE_ASSETS=... python benchmarks/power_search.py [--steps 80] [--mass 0.6]

By the recipe `power-search` in short, on Imagenette. The counts are then used without training: accuracy of PoWER with
the counts that were found, and with an equal share at blocks 3, 6 and 9 at the same cost.
"""

from __future__ import annotations

from imagenette import SHORT, folder, images, parser, say, ten_way_vit_tiny, train

import foveate as fv


def main() -> None:
    made = parser(__doc__ or "", steps=80)
    made.add_argument("--mass", type=float, default=0.6)
    args = made.parse_args()
    with folder(args.out) as place:
        top1 = images(args, place).top1
        start = fv.save(ten_way_vit_tiny(), place / "start")
        search = (f"objective.mass={args.mass}", "objective.retention_lr=0.03", "data.val=")
        outcome = train("power-search", place / "search", args, f"model.name={start}", *search, *SHORT)
        counts = outcome.products["counts"]
        share = sum(counts) / (len(counts) * 196)
        say(asked=args.mass, retained=outcome.products["share"], counts=counts, counts_share=round(share, 4))
        found = fv.reduce_(ten_way_vit_tiny(), fv.PoWER(), fv.Keep(counts))
        whole, part = fv.cost(ten_way_vit_tiny()).macs, fv.cost(found).macs
        plain = fv.reduce_(ten_way_vit_tiny(), fv.PoWER(), fv.Budget(part / whole))
        say(macs=round(part / whole, 3), found=top1(found), equal_share=top1(plain), unreduced=top1(ten_way_vit_tiny()))


if __name__ == "__main__":
    main()
