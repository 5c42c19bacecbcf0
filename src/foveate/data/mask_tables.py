"""Hugging Face datasets with an image column of masks."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from foveate.data.hugging_face import Rows, image_rows, library, load_split
from foveate.data.images import DataError
from foveate.data.labels import Request
from foveate.data.masks import MaskData, MaskRules, checked_masks

MASK_COLUMNS = ("mask", "masks", "label", "labels", "annotation", "segmentation", "segmentation_mask", "annotated")


@dataclass(frozen=True)
class MaskRows:
    """Masks of one column; None where a row has none."""

    rows: Rows

    def name(self, index: int) -> str:
        return f"{self.rows.name(index)}.{self.rows.column}"

    def open(self, index: int) -> Image.Image | None:
        return None if self.rows.table[index][self.rows.column] is None else self.rows.open(index)


def open_mask_table(name: str, request: Request, rules: MaskRules) -> MaskData:
    """Open a dataset; the column of masks is found by its name, or is ``rules.masks``."""
    datasets = library()
    where = f"hf:{name}"
    split, table = load_split(datasets, name, request.split, where)
    found = [column for column, kind in table.features.items() if isinstance(kind, datasets.Image)]
    mask = rules.masks or next((column for column in MASK_COLUMNS if column in found), None)
    if mask is not None and mask not in found:
        raise DataError(f"{where} has no image column {mask!r}; it has {', '.join(found) or 'none'}.")
    images = [column for column in found if column != mask]
    column = "image" if "image" in images else images[0] if len(images) == 1 else None
    if column is None:
        raise DataError(f"{where} must have one image column besides the masks, or one called 'image'; it has {found}.")
    rows = image_rows(datasets, table, column, name, split)
    masks = None if mask is None else MaskRows(image_rows(datasets, table, mask, name, split))
    data = MaskData(rows, split, None, request.classes, request.num_classes, masks, rules)
    return checked_masks(data, request, None, where)
