"""A model family: everything that foveate knows about one kind of model, bound to a model.

``inspect(model)`` finds the family whose class matches and binds it: ``family = TimmVit(model)``. A family describes
the model (shape, tokens, what its head reads), runs it piece by piece, knows its classifier, preprocessing and
architecture, and supplies a mixin whose methods replace the model's own once it is reduced. Only families access the
internals of a library's models. A new family is one file in this folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces
from foveate.adapters.engine import encode
from foveate.adapters.positions import PositionSource
from foveate.adapters.reduced import Reduced, Reducer
from foveate.adapters.stream import Encoded, spread_to_patches
from foveate.costs import Cost, ModelShape, Output, count, unreduced
from foveate.methods.validation import shown
from foveate.reductions import Reduction


class UnsupportedModel(TypeError):
    """The model is not supported. Reducing it anyway could give wrong results silently."""


class Family(ABC):
    """One model and everything that foveate knows about it. See ``fv.inspect``."""

    title: ClassVar[str]
    """Human-readable name, listed in the error for unsupported models."""
    library: ClassVar[str]
    """Name of its library in saved files."""
    mixin: ClassVar[type[Reduced] | None] = None
    """Methods that replace the model's own once it is reduced; None for a family that cannot be reduced."""
    classifier_names: ClassVar[tuple[str, ...]] = ()
    """Names of the child modules that turn features into a prediction."""
    embedding_names: ClassVar[frozenset[str]] = frozenset()
    """Parts of names of parameters that belong before the first block."""
    branches_on: ClassVar[tuple[str, ...]] = ()
    """Names of buffers whose values decide in Python which way the model's own code takes."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @classmethod
    @abstractmethod
    def matches(cls, model: nn.Module) -> bool:
        """Whether ``model`` belongs to this family; ``check`` then decides whether it is supported."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``UnsupportedModel`` for a variant that this family does not support."""

    @property
    def refusal(self) -> str | None:
        """Why a supported model cannot be reduced; None if it can."""
        return None

    def require_reducible(self) -> None:
        """Raise ``UnsupportedModel`` with the reason if the model cannot be reduced."""
        if self.refusal is not None:
            raise UnsupportedModel(self.refusal)

    @property
    def path(self) -> str:
        """Where the part that a reduction changes is inside the model; empty for the model itself."""
        return ""

    output: ClassVar[Output | None] = None
    """What leaves the encoder where the reduction does not say; None for what reductions do by default."""
    grid_only: ClassVar[bool] = False
    """Whether what follows the encoder needs a feature for every patch."""

    @property
    def last_read(self) -> int | None:
        """The last block whose features the rest of the model reads; None for the last of all."""
        return None

    def inside(self, reduction: Reduction) -> Reduction:
        """What a reduction of the model means for its encoder: nothing is reduced behind the last block read.

        Raises:
            ValueError: if the rest of the model needs a feature for every patch, and would get fewer.
        """
        output = reduction.output or self.output
        if reduction.exact_last_block and reduction.output is None:
            output = None if self.output is None else "tokens"
        if self.grid_only and output == "tokens":
            given = "output='tokens'" if reduction.output else "exact_last_block=True"
            raise ValueError(
                f"{type(self.model).__name__} reads a feature for every patch, and {given} leaves fewer. "
                "Use output='grid'."
            )
        span = reduction.merge_unmerge
        if self.last_read is not None and span is None and reduction.method is not None and output != "tokens":
            span = (0, self.last_read)
        if (output, span) == (reduction.output, reduction.merge_unmerge):
            return reduction
        return replace(reduction, output=output, merge_unmerge=span)

    # -- the model's parts

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks in order."""

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int, int]:
        """Channels, height and width of the images the model was built for."""

    @property
    def reducer(self) -> Reducer | None:
        """The child module of a reduced model; None if the model is not reduced."""
        return self.model.foveate if isinstance(self.model, Reduced) else None

    @property
    def reduction(self) -> Reduction:
        """How the model is reduced; the identity if it is not."""
        return Reduction() if self.reducer is None else self.reducer.reduction

    @property
    def base_class(self) -> type:
        """The model's original class, without the subclass that a reduction adds."""
        return getattr(type(self.model), "_foveate_base", type(self.model))

    def cost(self, image_size: tuple[int, int, int] | None = None) -> Cost:
        """The cost of one image, by default of the size the model was built for."""
        grid = self.grid_for_size(image_size)
        params = sum(p.numel() for p in self.model.parameters())
        shape, reducer = self.shape(grid), self.reducer
        if reducer is None:
            return count(shape, unreduced(shape), None, params)
        return count(shape, reducer.plan_for(grid), reducer.method, params)

    # -- tokens; only families that can be reduced have these

    @property
    def num_prefix(self) -> int:
        """Number of leading class, distillation and register tokens, which are never reduced."""
        return 0

    @property
    def has_cls(self) -> bool:
        """Whether the first prefix token is a class token."""
        return False

    def pieces(self) -> list[BlockPieces]:
        """Every block, split into pieces."""
        raise UnsupportedModel(self.refusal or f"{self.title} has no pieces.")

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of an image.

        Raises:
            ValueError: if the model does not take images of this size.
        """
        raise UnsupportedModel(self.refusal or f"{self.title} has no grid.")

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        """Sizes of the model for a patch grid, by default the one it was built for."""
        raise UnsupportedModel(self.refusal or f"{self.title} has no shape.")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of the images the model was built for."""
        return self.grid_for(*self.image_size[1:])

    def at_image_size(self, height: int, width: int) -> nn.Module:
        """A copy of an unreduced model for images of another size, with resampled positions; other weights are shared.

        Raises:
            UnsupportedModel: if the family does not know how.
        """
        raise UnsupportedModel(f"{self.title} has one image size here.")

    def grid_for_size(self, image_size: Any = None) -> tuple[int, int]:
        """Rows and columns of patches of an image of (channels, height, width), by default of the model's own size."""
        if image_size is None:
            return self.grid
        if not isinstance(image_size, tuple | list | torch.Size) or len(image_size) != 3:
            raise ValueError(
                f"image_size must be (channels, height, width), such as (3, 224, 224); got {shown(image_size)}."
            )
        channels = self.image_size[0]
        if image_size[0] != channels:
            raise ValueError(
                f"The model takes {channels} channels; image_size={tuple(image_size)} has {image_size[0]}."
            )
        return self.grid_for(image_size[1], image_size[2])

    # -- running the model

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        """Tokens that enter the first block, (B, P + N, C)."""
        raise UnsupportedModel(self.refusal or f"{self.title} embeds no tokens.")

    embed_options: ClassVar[frozenset[str]] = frozenset()
    """Names of the options that ``embed`` takes."""
    positions_between_patches: ClassVar[bool] = False
    """Whether blocks can read any coordinates as a position, so that merged tokens may have the mean of several."""

    @property
    def averages_positions(self) -> bool:
        """Whether merged tokens are at the mean of their patches."""
        wanted = self.reduction.positions
        return self.positions_between_patches if wanted is None else wanted == "mean"

    def position_source(self, images: Tensor, **options: Any) -> PositionSource | None:
        """What blocks read for each position, if they do; None if positions are only added before the first."""
        return None

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        """``embed`` and ``position_source``; families that compute both at once override this."""
        return self.embed(images, **options), self.position_source(images, **options)

    def encode(self, images: Tensor, *, record: bool = False, **options: Any) -> Encoded:
        """Run the embedding and all blocks. ``head`` continues from the result."""
        return encode(self, images, record=record, **options)

    def tokens_by_block(self, encoded: Encoded) -> list[Tensor]:
        """Tokens after each recorded block, (B, P + N, C): one for every patch if the reduction puts out the grid."""
        if self.reduction.output in (None, "tokens"):
            return [output.stream.tokens for output in encoded.blocks]
        found = (spread_to_patches(encoded, block, self.num_prefix) for block in range(len(encoded.blocks)))
        return [torch.cat([prefix, patches], dim=1) for patches, prefix in found]

    def final_norm(self, tokens: Tensor) -> Tensor:
        """Tokens after the last block as the head reads them."""
        return tokens

    def head(self, encoded: Encoded) -> Any:
        """Compute what the model returns from the result of ``encode``."""
        raise UnsupportedModel(self.refusal or f"{self.title} has no head for tokens.")

    @property
    def recomputes(self) -> bool:
        """Whether blocks are recomputed in the backward pass (activation checkpointing)."""
        return False

    # -- predictions

    def logits(self, output: Any) -> Tensor:
        """The logits in what the model returns."""
        return output

    @property
    def image_model(self) -> nn.Module:
        """What runs on images alone: the model, or its encoder if the rest needs texts."""
        return self.model

    def image_embedding(self, images: Tensor) -> Tensor:
        """(B, D) one vector for each image, of a model without a classifier.

        Raises:
            ValueError: if the model gives none.
        """
        output = self.model(images)
        if not isinstance(output, Tensor) or output.dim() != 2:
            raise ValueError(f"{type(self.model).__name__} gives no vector for an image, so it cannot be compared.")
        return output

    def text_embedding(self, texts: Sequence[str]) -> Tensor:
        """(T, D) vectors of texts, comparable with those of images.

        Raises:
            ValueError: if the model embeds no texts.
        """
        raise ValueError(f"{type(self.model).__name__} embeds no texts, so it takes no prompts.")

    def class_logits(self, encoded: Encoded) -> Tensor:
        """The prediction that DynamicViT's losses look at; the model's own but where its head has several parts."""
        return self.logits(self.head(encoded))

    def patch_logits(self, encoded: Encoded) -> Tensor | None:
        """The prediction of every patch token, (B, N, classes), where the head makes one; None elsewhere."""
        return None

    def classifiers(self) -> list[nn.Module]:
        """The layers that turn features into a prediction; empty if there is no classifier."""
        found = [getattr(self.model, name, None) for name in self.classifier_names]
        return [layer for layer in found if isinstance(layer, nn.Module) and any(True for _ in layer.parameters())]

    def is_classifier(self, name: str) -> bool:
        """Whether the parameter or module called ``name`` belongs to a classifier."""
        return name.split(".")[0] in self.classifier_names

    @property
    def num_classes(self) -> int | None:
        """Number of classes the model predicts; None if it has no classifier."""
        for layer in self.classifiers():
            last = [part for part in layer.modules() if isinstance(part, nn.Linear)]
            if last:
                return last[-1].out_features
        return None

    def set_classes_(self, num_classes: int) -> None:
        """Give the model a new classifier for ``num_classes``, unless it already has as many."""
        if num_classes != self.num_classes:
            self._replace_classifier(num_classes)

    def _replace_classifier(self, num_classes: int) -> None:
        raise ValueError(
            f"{type(self.model).__name__} has no classifier that foveate can replace. "
            "Use a model for image classification."
        )

    # -- images, training, files

    def preprocessing(self) -> dict[str, Any]:
        """Preprocessing the model was trained with, as far as known: mean, std, interpolation, crop_pct, crop_mode."""
        return {}

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: positions and prefix tokens."""
        own = getattr(self.model, "no_weight_decay", None)
        return set(own()) if callable(own) else set()

    @abstractmethod
    def architecture(self) -> dict[str, Any] | None:
        """Plain data from which ``rebuild`` makes an equal, untrained model; None if that is not possible."""

    @classmethod
    def can_rebuild(cls, architecture: Mapping[str, Any]) -> bool:
        """Whether ``architecture`` is of this family, or of another of its library that is built in the same way."""
        return architecture.get("library") == cls.library

    @staticmethod
    def check_saved_options(options: Any, known: Collection[str]) -> dict[str, Any]:
        """The options of a saved architecture, if ``save`` could have written them.

        A manifest must not reach arguments of a library that it has no business with, such as a path to open.

        Raises:
            ValueError: for an unknown name, or a value that is not a plain number, flag, word or list of numbers.
        """
        if not isinstance(options, Mapping):
            raise ValueError(f"The saved architecture has no table of options; got {options!r:.80}.")
        for name, value in options.items():
            if name not in known:
                raise ValueError(f"The saved architecture has an option {name!r:.80}, which foveate.save never writes.")
            if not _is_plain(value):
                raise ValueError(f"The saved architecture has {name}={value!r:.80}, which foveate.save never writes.")
        return dict(options)

    @classmethod
    @abstractmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> nn.Module:
        """Build the untrained, unreduced model that ``architecture`` describes."""

    def convert_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Adapt the weights of a related model to this one, if the family can."""
        return weights

    # -- display

    @property
    def head_reads(self) -> str:
        """What the head reads, in words."""
        return "patch tokens" if self.shape().head_reads_patches else "prefix tokens"

    def __str__(self) -> str:
        return "\n".join(f"{name:<11} {value}" for name, value in self.facts().items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__})\n{self}"

    def facts(self) -> dict[str, str]:
        """What ``print(fv.inspect(model))`` shows."""
        found = {"model": f"{type(self.model).__name__} ({self.title})", "blocks": str(len(self.blocks))}
        found |= {"image": " x ".join(map(str, self.image_size)), "classes": str(self.num_classes or "none")}
        if self.refusal is not None:
            return found | {"reducible": f"no: {self.refusal}"}
        rows, columns = self.grid
        found["tokens"] = f"{self.num_prefix} prefix + {rows} x {columns} patches"
        found["head"] = f"reads {self.head_reads}"
        found["MACs"] = f"{self.cost().macs / 1e9:.3f} G"
        return found | {"reducible": "yes", "reduction": str(self.reduction)}


LARGEST_SIZE = 100_000  # in a saved architecture; every width, depth and image size is far below


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 16 and all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return len(value) <= 16 and all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, str):
        return value.isidentifier() or value == ""
    return value is None or (isinstance(value, int | float) and abs(value) <= LARGEST_SIZE)
