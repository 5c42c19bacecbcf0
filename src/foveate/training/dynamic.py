"""Training of DynamicViT: cross-entropy, distillation from the initial model, and a loss on the kept share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from foveate.adapters import CHILD, Encoded, inspect, reducer_of
from foveate.methods.learned import MaskTrainedMethod
from foveate.tasks import Task
from foveate.training.objectives import Classify, Losses, Moment, prediction_loss


def ratio_loss(decisions: Sequence[Tensor], ratios: Sequence[float]) -> Tensor:
    """Return the mean over stages s and images of (kept fraction - rho_s)^2, from keep decisions (B, N) per stage.

    ``Dynamic`` uses the share that inference keeps, rho_s = int(N rho^s) / N, where the paper has rho^s.
    """
    if len(decisions) != len(ratios) or not ratios:
        raise ValueError(f"There are {len(decisions)} stages of decisions but {len(ratios)} target ratios.")
    parts = [(kept.mean(dim=1) - ratio).square().mean() for kept, ratio in zip(decisions, ratios, strict=True)]
    return torch.stack(parts).mean()


def token_loss(tokens: Tensor, teacher_tokens: Tensor, kept: Tensor) -> Tensor:
    """Return the squared difference of the finally kept tokens, sum_i D_i |t_i - t'_i|^2 / (C sum_i D_i), over images.

    The paper divides by the kept tokens of the whole batch; here each image has the same weight in any batch. Decisions
    receive a gradient here too, as printed.
    """
    return _mean_of_kept((tokens.float() - teacher_tokens.float()).square().mean(dim=-1), kept)


def token_prediction_loss(logits: Tensor, teacher_logits: Tensor, kept: Tensor) -> Tensor:
    """KL(teacher || student) of the predictions (B, N, classes) of the tokens kept at the end, averaged as above."""
    ours, theirs = log_softmax(logits.float(), dim=-1), log_softmax(teacher_logits.float(), dim=-1)
    return _mean_of_kept(kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1), kept)


def _mean_of_kept(values: Tensor, kept: Tensor) -> Tensor:
    """The mean over images of the mean of ``values`` (B, N) over kept tokens."""
    return ((values * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)).mean()


class Dynamic(Classify):
    """Cross-entropy + kl * KL + tokens * token distillation + ratio * ratio loss; the paper's weights are 0.5, 0.5, 2.

    The teacher is the model with its weights at the start, unreduced and frozen, a copy that the student never shares.

    On LV-ViT the losses are the published code's: cross-entropy and KL look at the class token's head alone, and token
    distillation is the KL of the second head's predictions for the kept tokens, where other models have the squared
    difference of the tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task | None = None,
        kl: float = 0.5,
        tokens: float = 0.5,
        ratio: float = 2.0,
        backbone_lr: float = 0.01,
        frozen_epochs: float = 5,
        teacher: nn.Module | None = None,
    ) -> None:
        super().__init__(model, task, kl, teacher)
        reducer = reducer_of(model)
        if reducer is None or not isinstance(reducer.method, MaskTrainedMethod):
            raise ValueError("This objective trains DynamicViT's predictors. Set reduction.method=dynamicvit.")
        self.tokens, self.ratio = tokens, ratio
        self.backbone_lr, self.frozen_epochs = backbone_lr, frozen_epochs
        if tokens and teacher is None:
            raise ValueError(
                "Distillation (tokens) needs a teacher. Pass teacher=initial_teacher(model), or set the weight to 0."
            )
        if not reducer.learned:
            raise ValueError(
                f"{reducer.schedule!r} removes no token from images of this size, so there is nothing to learn. "
                "Keep fewer tokens: --set reduction.keep_rate=0.7."
            )
        if not all(parameter.requires_grad for parameter in reducer.learned.parameters()):
            raise ValueError(
                "The predictors are frozen, but this objective trains them. To train only them, leave out model.freeze "
                "and raise objective.frozen_epochs."
            )

    @property
    def ratios(self) -> list[float]:
        """The target share of tokens after each stage, from whole tokens as at inference."""
        reducer = reducer_of(self.model)
        assert reducer is not None
        return [reducer.plan.counts[block] / reducer.shape.num_patches for block in _stages(self.model)]

    def forward(self, images: Tensor, targets: Any) -> Losses:
        encoded, logits = _encoded_and_predicted(self.model, images)
        decisions = _decisions(self.model, encoded)
        losses = {"loss": self.task.loss(logits, targets), "ratio": self.ratio * ratio_loss(decisions, self.ratios)}
        if self.kl or self.tokens:
            losses |= self._distillation(images, logits, encoded, decisions[-1])
        return losses

    def _distillation(self, images: Tensor, logits: Tensor, encoded: Encoded, kept: Tensor) -> Losses:
        teacher = self.teacher(images.device)
        with torch.no_grad():
            teacher_encoded, teacher_logits = _encoded_and_predicted(teacher, images)
        parts = {"kl": self.kl * prediction_loss(logits, teacher_logits)}
        return parts | {"tokens": self.tokens * self._token_loss(encoded, teacher, teacher_encoded, kept)}

    def _token_loss(self, encoded: Encoded, teacher: nn.Module, teacher_encoded: Encoded, kept: Tensor) -> Tensor:
        logits = inspect(self.model).patch_logits(encoded)
        if logits is None:
            return token_loss(_patches(self.model, encoded), _patches(teacher, teacher_encoded), kept)
        with torch.no_grad():
            teacher_logits = inspect(teacher).patch_logits(teacher_encoded)
        assert teacher_logits is not None
        return token_prediction_loss(logits, teacher_logits, kept)

    def param_groups(self) -> list[dict[str, Any]]:
        reducer = reducer_of(self.model)
        assert reducer is not None
        return [{"params": list(reducer.learned.parameters())}]

    def before_step(self, moment: Moment) -> None:
        """Freeze batch statistics while the backbone is frozen (LV-ViT's stem has batch norms)."""
        for module in self.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                learns = any(parameter.requires_grad for parameter in module.parameters())
                module.train(learns and moment.epoch >= self.frozen_epochs)

    def before_update(self, moment: Moment) -> None:
        """Drop the backbone's gradients while it is frozen; the predictors' gradients had to pass through it."""
        if moment.epoch < self.frozen_epochs:
            for name, parameter in self.model.named_parameters():
                if not name.startswith(f"{CHILD}."):
                    parameter.grad = None


@torch.no_grad()
def kept_shares(model: nn.Module, images: Tensor) -> Tensor:
    """Return the shares (stages, B) of tokens that the predictors keep when they sample, as in training."""
    reducer = reducer_of(model)
    assert reducer is not None
    training = reducer.training
    reducer.train()  # only the reducer: dropout and batch norms stay in evaluation mode
    try:
        encoded = inspect(model).encode(images, record=True)
    finally:
        reducer.train(training)
    return torch.stack([kept.mean(dim=1) for kept in _decisions(model, encoded)])


def _encoded_and_predicted(model: nn.Module, images: Tensor) -> tuple[Encoded, Tensor]:
    """Return the record of every block and the logits, from one pass."""
    family = inspect(model)
    encoded = family.encode(images, record=True)
    return encoded, family.class_logits(encoded).float()


def _decisions(model: nn.Module, encoded: Encoded) -> list[Tensor]:
    found = [encoded.blocks[block].stream.keep for block in _stages(model)]
    return [kept for kept in found if kept is not None]


def _stages(model: nn.Module) -> list[int]:
    reducer = reducer_of(model)
    assert reducer is not None
    return sorted(reducer.modules_by_block)


def _patches(model: Any, encoded: Encoded) -> Tensor:
    family = inspect(model)
    return family.final_norm(encoded.stream.tokens)[:, family.num_prefix :]
