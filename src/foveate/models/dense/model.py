"""A dense model: an encoder and a head on its feature maps."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from foveate.methods.validation import check_sizes, check_type, shown
from foveate.models.dense.encoders import reader_for
from foveate.models.dense.head import Head, find_head


class DenseModel(nn.Module):
    """``head`` on the feature maps of ``encoder``. Build it with ``dense_model`` or by name, ``clustr_tiny+upernet``.

    With a plain ViT as its encoder, ``fv.reduce_(model, ...)`` reduces the encoder, and the head reads one feature for
    each patch as before.
    """

    def __init__(
        self, encoder: nn.Module, head: Head, image_size: tuple[int, int, int], name: str, options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.image_size = image_size
        """Channels, height and width of the images that it is made for."""
        self.encoder_name, self.encoder_options = name, options
        """How the encoder was built, where its library knows it by name."""

    def forward(self, images: Tensor, **given: Any) -> Any:
        """Predict. ``given`` goes to the head, such as ``targets`` of a detector in training."""
        return self.head(self.maps(images), (images.shape[-2], images.shape[-1]), **given)

    def maps(self, images: Tensor) -> list[Tensor]:
        """The encoder's feature maps, which the head reads."""
        largest = max(self.head.levels.strides)
        if images.dim() != 4 or min(images.shape[-2:]) < largest:
            raise ValueError(
                f"Images must be (batch, channels, height, width) of at least {largest} x {largest} pixels, one "
                f"feature of the coarsest map; got {tuple(images.shape)}."
            )
        return self._read_maps(images)

    def _read_maps(self, images: Tensor) -> list[Tensor]:
        return reader_for(self.encoder).maps(images, self.head.blocks)


def dense_model(
    encoder: nn.Module,
    head: str,
    num_classes: int | None = None,
    *,
    image_size: tuple[int, int] | None = None,
    encoder_name: str = "",
    encoder_options: dict[str, Any] | None = None,
    **options: Any,
) -> DenseModel:
    """Put a dense head on ``encoder``, whose classifier is not used.

    Args:
        encoder: a plain ViT of a supported family, reduced or not; ``clustr_*``; ``hvt_*`` with ``pool_dim=2``; or a
            timm model with several stages.
        head: a name of ``head_names()``, such as ``"semantic-fpn"``.
        num_classes: classes that it predicts; by default those of the paper's data.
        image_size: height and width of the images; by default those that the encoder was built for.
        encoder_name: its timm name, where foveate has no family for it. Needed to save the model.
        encoder_options: options that it was built with, beside that name.
        options: of the head.

    Raises:
        UnsupportedModel: if the encoder gives no feature maps.
        ValueError: if the head cannot use their strides, or the encoder does not take images of that size.
    """
    check_type(str, "the name of a dense head", head=head)
    cls, reader = find_head(head), reader_for(encoder)
    size = _size(encoder, reader.family, image_size)
    blocks = options.get("blocks", cls.blocks)
    levels = reader.levels(checked_blocks(blocks, encoder))
    made = cls(levels, cls.default_classes if num_classes is None else num_classes, **options)
    if reader.family is not None and reader.family.refusal is None:
        reader.family.grid_for(*size[1:])  # refuses sizes that its positions or patches do not fit
    return DenseModel(encoder, made, size, encoder_name, dict(encoder_options or {}))


def checked_blocks(blocks: Any, encoder: nn.Module) -> tuple[int, ...]:
    whole = isinstance(blocks, list | tuple) and all(isinstance(b, int) and not isinstance(b, bool) for b in blocks)
    if not whole or not blocks:
        raise ValueError(f"blocks must be numbers of blocks, such as [2, 5, 8, 11]; got {shown(blocks)}.")
    family = reader_for(encoder).family
    depth = len(family.blocks) if family is not None and family.refusal is None else max(map(abs, blocks)) + 1
    if not all(-depth <= block < depth for block in blocks):
        raise ValueError(f"The encoder has {depth} blocks (0..{depth - 1}); got blocks={list(blocks)}.")
    return tuple(blocks)


def _size(encoder: Any, family: Any, wanted: tuple[int, int] | None) -> tuple[int, int, int]:
    own = family.image_size if family is not None else _declared_size(encoder)
    if wanted is None:
        return own
    if not isinstance(wanted, list | tuple) or len(wanted) != 2:
        raise ValueError(f"image_size must be height and width, such as (512, 512); got {shown(wanted)}.")
    check_sizes(**{"image_size[0]": wanted[0], "image_size[1]": wanted[1]})
    return own[0], wanted[0], wanted[1]


def _declared_size(encoder: Any) -> tuple[int, int, int]:
    """The size that timm states for a model whose family foveate does not know."""
    known = getattr(encoder, "pretrained_cfg", None) or {}
    channels, height, width = known.get("input_size") or (3, 224, 224)
    first = next((layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d)), None)
    return (channels if first is None else first.in_channels), height, width
