"""PoWER-BERT's search on a pretrained ViT-Tiny: does it reach its target mass, and how good are its counts?

    FOVEATE_ASSETS=... python benchmarks/power_search.py [--steps 80] [--mass 0.6]

A short run of the recipe `power-search` on Imagenette. Then the counts are used without training: accuracy of PoWER
with these counts, and with an equal share at blocks 3, 6 and 9 at the same cost.
"""

from __future__ import annotations

from imagenette import SHORT, folder, images, parser, report, ten_way_vit_tiny, train

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
        report(asked=args.mass, retained=outcome.products["share"], counts=counts, counts_share=round(share, 4))
        found = fv.reduce_(ten_way_vit_tiny(), fv.PoWER(), fv.Keep(counts))
        ratio = fv.cost(found).macs / fv.cost(ten_way_vit_tiny()).macs
        plain = fv.reduce_(ten_way_vit_tiny(), fv.PoWER(), fv.Budget(ratio))
        report(macs=round(ratio, 3), found=top1(found), equal_share=top1(plain), unreduced=top1(ten_way_vit_tiny()))


if __name__ == "__main__":
    main()
