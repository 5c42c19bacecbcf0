"""DynamicViT learns: kept ratios meet their target, and accuracy rises above an untrained predictor's and TopK's.

    FOVEATE_ASSETS=... python benchmarks/dynamicvit.py [--steps 420] [--batch-size 32] [--rho 0.7] [--out DIR]

The pretrained ViT-Tiny on Imagenette's training images, by the recipe `dynamicvit` in short: a higher rate, a backbone
that is frozen for a fifth of an epoch, and a heavier ratio loss, because a few hundred steps leave the other losses so
large that they would buy tokens. The model keeps its thousand classes (`data.classes`), so that the teacher has more to
say than ten easy ones. Accuracies are over the ten; TopK follows the same counts without training.
"""

from __future__ import annotations

import json

import torch
from evit_recovery import top1
from imagenette import SHORT, class_file, data, folder, parser, say, ten_way, ten_way_vit_tiny, train
from photographs import vit_tiny

import foveate as fv
from foveate.adapters import reduction_of
from foveate.data import Loader, open_data
from foveate.data.preprocessing import Preprocessing
from foveate.train.dynamic import kept_shares

SITES = (3, 6, 9)
OPTIONS = {
    "lr": (1e-3, "optimiser.lr", "learning rate of the predictors"),
    "backbone-lr": (0.01, "objective.backbone_lr", "the backbone's, as a multiple of it"),
    "ratio-weight": (100.0, "objective.ratio_weight", "of the loss on the share of kept tokens; the paper's is 2"),
    "kl-weight": (0.5, "objective.kl_weight", "of the teacher's prediction; the paper's"),
    "token-weight": (0.5, "objective.token_weight", "of the teacher's tokens; the paper's"),
}


def main() -> None:
    made = parser(__doc__ or "", steps=420)
    made.add_argument("--rho", type=float, default=0.7)
    for name, (value, _, text) in OPTIONS.items():
        made.add_argument(f"--{name}", type=float, default=value, help=f"{text} (default: {value:g})")
    args = made.parse_args()
    schedule = fv.KeepRate(args.rho, blocks=SITES)
    untrained = fv.reduce_(ten_way_vit_tiny(), fv.DynamicViT(), schedule)
    reduction = reduction_of(untrained)
    assert reduction is not None
    counts = list(reduction.plan.counts)
    with folder(args.out) as place:
        start = fv.save(vit_tiny(), place / "start")
        told = [f"model.name={start}", f"data.classes={class_file(place)}", *SHORT, "objective.frozen_epochs=0.2"]
        told += [f"{path}={getattr(args, name.replace('-', '_'))}" for name, (_, path, _) in OPTIONS.items()]
        outcome = train("dynamicvit", place / "run", args, *told, f"reduction.keep_rate={args.rho}")
        print(json.dumps([line["train"] for line in outcome.history]))
        trained = ten_way(fv.load(place / "run" / "model"))
        kept = kept_ratios(trained)
        targets = [round(args.rho**stage, 4) for stage in (1, 2, 3)]
        say(kept=kept, targets=targets, within=round(max(abs(k - t) for k, t in zip(kept, targets, strict=True)), 4))
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
