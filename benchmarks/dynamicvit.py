"""DynamicViT learns: kept ratios meet their target, and accuracy rises above an untrained predictor's and TopK's.

    FOVEATE_ASSETS=... python benchmarks/dynamicvit.py [--steps 300] [--batch-size 32] [--rho 0.7] [--out DIR]

The pretrained ViT-Tiny with its classifier cut to Imagenette's ten classes, by the recipe `dynamicvit` in short: a
higher rate, and a backbone that is frozen for a fifth of an epoch. TopK follows the same counts without training.
"""

from __future__ import annotations

import json

import torch
from evit_recovery import top1
from imagenette import SHORT, data, folder, parser, say, ten_way_vit_tiny, train

import foveate as fv
from foveate.adapters import reduction_of
from foveate.data import Loader, open_data
from foveate.data.preprocessing import Preprocessing
from foveate.train.dynamic import kept_shares

SITES = (3, 6, 9)


def main() -> None:
    made = parser(__doc__ or "", steps=300)
    made.add_argument("--rho", type=float, default=0.7)
    made.add_argument(
        "--ratio-weight", type=float, default=10.0, help="of the ratio loss; the paper's is 2 (default: 10)"
    )
    made.add_argument(
        "--backbone-lr", type=float, default=0.01, help="as a multiple of the predictors' (default: 0.01)"
    )
    made.add_argument("--lr", type=float, default=1e-3, help="of the predictors; the backbone has a hundredth of it")
    args = made.parse_args()
    schedule = fv.KeepRate(args.rho, blocks=SITES)
    untrained = fv.reduce_(ten_way_vit_tiny(), fv.DynamicViT(), schedule)
    reduction = reduction_of(untrained)
    assert reduction is not None
    counts = list(reduction.plan.counts)
    with folder(args.out) as place:
        start = fv.save(ten_way_vit_tiny(), place / "start")
        told = (f"reduction.keep_rate={args.rho}", f"optimiser.lr={args.lr}", "objective.frozen_epochs=0.2")
        told += (f"objective.ratio_weight={args.ratio_weight}", f"objective.backbone_lr={args.backbone_lr}")
        outcome = train("dynamicvit", place / "run", args, f"model.name={start}", *SHORT, *told)
        print(json.dumps([line["train"] for line in outcome.history]))
        trained = fv.load(place / "run" / "model")
        kept = kept_ratios(trained)
        targets = [args.rho**stage for stage in (1, 2, 3)]
        say(kept=kept, targets=targets, within=max(abs(k - t) for k, t in zip(kept, targets, strict=True)))
        topk = fv.reduce_(ten_way_vit_tiny(), fv.TopK(), fv.Keep(counts))
        before, chosen, unreduced = top1(untrained), top1(topk), top1(ten_way_vit_tiny())
        say(trained=top1(trained), untrained_predictor=before, topk=chosen, unreduced=unreduced)


def kept_ratios(model: torch.nn.Module) -> list[float]:
    """Shares of tokens that the predictors keep by chance, as in training, over validation images."""
    loader = Loader(open_data(data(), "val"), Preprocessing.of(model).evaluation(), 50, seed=0, train=False)
    torch.manual_seed(0)
    shares = torch.cat([kept_shares(model, batch.images) for batch in loader.epoch(0)], dim=1)
    return [round(share, 4) for share in shares.mean(dim=1).tolist()]


if __name__ == "__main__":
    main()
