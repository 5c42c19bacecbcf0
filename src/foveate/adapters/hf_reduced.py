"""The forward of a reduced transformers model."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foveate.adapters.reduced import Reduced


class ReducedHf(Reduced):
    """The forward of a reduced transformers model that reads images of one size."""

    def forward(
        self: Any,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **refused: Any,
    ) -> Any:
        if pixel_values is None:
            raise ValueError("You have to specify pixel_values.")
        refuse_extras(self, refused)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        family, shows = self._family, bool(output_hidden_states)
        options = {"interpolate_pos_encoding": interpolate_pos_encoding}
        encoded = family.encode(pixel_values, record=shows or family.variant.maps, **options)
        hidden = (encoded.embedded, *family.tokens_by_block(encoded)) if encoded.blocks else None
        grid = family.grid_for(*pixel_values.shape[-2:])
        output = family.head(encoded, labels=labels, hidden=hidden, grid=grid, shows_hidden=shows)
        return as_asked(self, output, return_dict)


def as_asked(model: Any, output: Any, return_dict: bool | None) -> Any:
    """The output, or a tuple of it where that is wanted."""
    wants_dict = model.config.return_dict if return_dict is None else return_dict
    return output if wants_dict else output.to_tuple()


def refuse_extras(model: Any, extras: dict[str, Any]) -> None:
    """Raise ``ValueError`` for arguments that have no meaning for a reduced model, instead of ignoring them."""
    for name, value in extras.items():
        if value is not None and value is not False:
            raise ValueError(f"A reduced {type(model).__name__} takes no {name}. Call restore_(model) to use it.")
    if getattr(model.config, "output_attentions", False):
        raise ValueError("A reduced model has no attention maps to return. Set config.output_attentions=False.")
