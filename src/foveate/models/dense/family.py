"""The family of dense models: cost, files, classes and images of an encoder with a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from foveate.adapters import BlockPieces, Family, UnsupportedModel, inspect, rebuild, reducer_of, register_family
from foveate.costs import Cost, ModelShape
from foveate.models.dense.encoders import reader_for
from foveate.models.dense.head import Levels, find_head
from foveate.models.dense.model import DenseModel, checked_blocks
from foveate.models.dense.reduced import ReducedDense
from foveate.reductions import Reduction

PYRAMID_OPTIONS = frozenset({"drop_path_rate", "drop_rate", "in_chans", "img_size", "window_size", "num_classes"})
"""Options of a timm pyramid that a saved dense model may name."""


@register_family
class DenseFamily(Family):
    """An encoder with a dense head. Reducing it reduces the encoder, if that is a plain ViT."""

    title = "dense model (ENCODER+HEAD)"
    library = "dense"
    classifier_names = ("head",)
    mixin = ReducedDense

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, DenseModel)

    def check(self) -> None:
        reader_for(self.model.encoder)

    @property
    def task(self) -> str:
        """The task that the head is for."""
        return self.model.head.task

    @property
    def encoder(self) -> Family | None:
        """The encoder's family; None for a pyramid of timm that foveate does not know."""
        return reader_for(self.model.encoder).family

    @property
    def refusal(self) -> str | None:
        encoder = self.model.encoder
        if self.encoder is None:
            return f"The encoder {type(encoder).__name__} is a pyramid that foveate cannot reduce."
        if reducer_of(encoder) is not None:
            return f"The encoder {type(encoder).__name__} is already reduced by itself."
        return self.encoder.refusal

    @property
    def plain(self) -> Family:
        """The family of a plain ViT as encoder, whose tokens are those of the model.

        Raises:
            UnsupportedModel: if the encoder is another.
        """
        self.require_reducible()
        assert self.encoder is not None
        return self.encoder

    @property
    def blocks(self) -> list[nn.Module]:
        return [] if self.encoder is None else self.encoder.blocks

    @property
    def image_size(self) -> tuple[int, int, int]:
        return self.model.image_size

    def cost(self, image_size: Sequence[int] | None = None) -> Cost:
        """The cost of one image: the encoder without its own classifier, and the head as it predicts."""
        size: Any = tuple(image_size or self.image_size)
        if self.refusal is None:
            found, maps = super().cost(size), [self.grid_for_size(size)] * len(self.model.head.blocks)
        else:
            found, maps = reader_for(self.model.encoder).cost(size, self.model.head.blocks)
        macs = found.macs + self._head_macs(maps, (size[1], size[2]))
        params = sum(p.numel() for p in self.model.parameters())
        return Cost(params, macs, found.reduction_macs, found.tokens)

    def _head_macs(self, maps: list[tuple[int, int]], size: tuple[int, int]) -> int:
        """Counted by torch on a head without values, so that no formula can differ from the layers."""
        head = self.model.head
        counter = FlopCounterMode(display=False)
        with torch.device("meta"), torch.no_grad():
            empty = head.rebuilt().eval()
            inputs = [torch.empty(1, c, *one) for c, one in zip(head.levels.channels, maps, strict=True)]
            with counter:
                empty.counted(inputs, size)
        return counter.get_total_flops() // 2

    # -- tokens: those of a plain ViT

    @property
    def num_prefix(self) -> int:
        return self.plain.num_prefix

    @property
    def has_cls(self) -> bool:
        return self.plain.has_cls

    @property
    def embed_options(self) -> frozenset[str]:  # type: ignore[override]
        return self.plain.embed_options

    @property
    def positions_between_patches(self) -> bool:  # type: ignore[override]
        return self.plain.positions_between_patches

    @property
    def embedding_names(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset() if self.encoder is None else self.encoder.embedding_names

    @property
    def recomputes(self) -> bool:
        return self.refusal is None and self.plain.recomputes

    def pieces(self) -> list[BlockPieces]:
        return self.plain.pieces()

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        return self.plain.grid_for(height, width)

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        """Sizes of the encoder; what its own head would cost is left out."""
        known = self.plain.shape(self.grid if grid is None else grid)
        return replace(known, head_macs=0, head_macs_per_patch=0, head_reads_patches=True)

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        return self.plain.embed(images, **options)

    def position_source(self, images: Tensor, **options: Any) -> Any:
        return self.plain.position_source(images, **options)

    def embed_with_positions(self, images: Tensor, **options: Any) -> Any:
        return self.plain.embed_with_positions(images, **options)

    def final_norm(self, tokens: Tensor) -> Tensor:
        return self.plain.final_norm(tokens)

    # -- predictions

    def logits(self, output: Any) -> Tensor:
        return getattr(output, "logits", output)

    @property
    def num_classes(self) -> int:
        return self.model.head.num_classes

    def _replace_classifier(self, num_classes: int) -> None:
        """A new head for other classes; layers of the same shape keep their weights."""
        old, new = self.model.head, self.model.head.rebuilt(num_classes)
        own = new.state_dict()
        fitting = {k: v for k, v in old.state_dict().items() if v.shape == own[k].shape}
        new.load_state_dict(own | fitting)
        reference = next(old.parameters())
        self.model.head = new.to(reference.device, reference.dtype).train(old.training)

    def preprocessing(self) -> dict[str, Any]:
        return reader_for(self.model.encoder).preprocessing()

    def no_weight_decay(self) -> set[str]:
        own = getattr(self.model.encoder, "no_weight_decay", None)
        names = self.encoder.no_weight_decay() if self.encoder is not None else own() if callable(own) else ()
        learned = set() if self.reducer is None else self.reducer.no_weight_decay()
        return {f"encoder.{name}" for name in names} | learned

    # -- files

    def architecture(self) -> dict[str, Any] | None:
        model, head = self.model, self.model.head
        encoder = self._encoder_architecture()
        if encoder is None:
            return None
        reducer = reducer_of(model.encoder)
        return {
            "library": self.library,
            "architecture": f"{encoder.get('architecture', type(model.encoder).__name__)}+{head.name}",
            "encoder": encoder,
            "reduction": None if reducer is None else reducer.reduction.to_dict(),
            "image_size": list(model.image_size),
            "head": {"name": head.name, "num_classes": head.num_classes, "options": head.options},
        }

    def _encoder_architecture(self) -> dict[str, Any] | None:
        if self.encoder is not None:
            return self.encoder.architecture()
        if not self.model.encoder_name:
            return None
        return {"library": "pyramid", "architecture": self.model.encoder_name, "options": self.model.encoder_options}

    @classmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> DenseModel:
        described = architecture.get("encoder")
        if not isinstance(described, Mapping):
            raise ValueError(f"The saved dense model has no encoder; got {described!r:.80}.")
        pyramid = described.get("library") == "pyramid"
        encoder = cls._pyramid(described) if pyramid else _without_nesting(described)
        reduction = architecture.get("reduction")
        if reduction is not None:
            Reduction.from_dict(reduction).apply_(encoder)
        head = architecture.get("head")
        if not isinstance(head, Mapping) or not isinstance(head.get("name"), str):
            raise ValueError(f"The saved dense model has no head; got {head!r:.80}.")
        made = find_head(head["name"])
        options = cls.check_saved_options(head.get("options"), made.option_names())
        sizes = cls.check_saved_options({"size": architecture.get("image_size")}, {"size"})["size"]
        if not isinstance(sizes, list) or len(sizes) != 3 or not all(isinstance(s, int) and s > 0 for s in sizes):
            raise ValueError(f"The saved dense model has the image size {sizes!r:.80}.")
        blocks = options.get("blocks", made.blocks)
        levels = reader_for(encoder).levels(checked_blocks(blocks, encoder))
        name = described["architecture"] if pyramid else ""
        built_with = dict(described["options"]) if pyramid else {}
        channels, height, width = sizes
        return DenseModel(
            encoder, made(Levels(*levels), head["num_classes"], **options), (channels, height, width), name, built_with
        )

    @classmethod
    def _pyramid(cls, architecture: Mapping[str, Any]) -> nn.Module:
        name = architecture.get("architecture")
        if not isinstance(name, str) or ":" in name or "/" in name or not timm.is_model(name):
            raise ValueError(f"The saved encoder has the architecture {name!r:.80}, which this timm does not have.")
        options = cls.check_saved_options(architecture.get("options"), PYRAMID_OPTIONS)
        return timm.create_model(name, pretrained=False, **options)

    def facts(self) -> dict[str, str]:
        found = super().facts() | {"head": f"{self.model.head.name}, for {self.task}"}
        encoder = "a pyramid of timm" if self.encoder is None else self.encoder.title
        found["encoder"] = f"{type(self.model.encoder).__name__} ({encoder})"
        found["strides"] = ", ".join(map(str, self.model.head.levels.strides))
        own = reducer_of(self.model.encoder)
        return found if own is None else found | {"reduction": f"of the encoder: {own.reduction}"}


def _without_nesting(architecture: Mapping[str, Any]) -> nn.Module:
    if architecture.get("library") == DenseFamily.library:
        raise UnsupportedModel("A dense model cannot be the encoder of another.")
    encoder = rebuild(architecture)
    inspect(encoder)
    return encoder
