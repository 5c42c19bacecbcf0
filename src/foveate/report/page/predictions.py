"""Predictions over a few images, side by side: plain HTML that needs no script."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Protocol

from PIL import Image

WIDEST = 720


class PredictedPictures(Protocol):
    """Images with the prediction of the unreduced model and of one setting."""

    @property
    def setting(self) -> str: ...

    @property
    def rows(self) -> Sequence[tuple[str, tuple[Image.Image, Image.Image]]]: ...


def predicted_pictures(found: PredictedPictures | None) -> str:
    """Return the section of predictions; empty if there are none."""
    if found is None or not found.rows:
        return ""
    figures = "".join(
        f"<figure>{_picture(picture, name, who)}<figcaption>{escape(who)}: {escape(name)}</figcaption></figure>"
        for name, pictures in found.rows
        for picture, who in zip(pictures, ("Unreduced", found.setting), strict=True)
    )
    return (
        '<section aria-labelledby="predictions-title"><h2 id="predictions-title">What it predicts</h2>'
        f'<p class="lead">The unreduced model, and {escape(found.setting)}.</p>'
        f'<div class="predictions">{figures}</div></section>'
    )


def _picture(picture: Image.Image, name: str, who: str) -> str:
    small = picture.convert("RGB")
    small.thumbnail((WIDEST, 2 * WIDEST), Image.Resampling.LANCZOS)
    held = io.BytesIO()
    small.save(held, "JPEG", quality=85, optimize=True)
    source = base64.b64encode(held.getvalue()).decode("ascii")
    words = escape(f"{who}: prediction for {name}", quote=True)
    return f'<img src="data:image/jpeg;base64,{source}" width="{small.width}" height="{small.height}" alt="{words}">'
