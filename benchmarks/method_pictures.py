"""Draw the pictures of docs/methods: the tokens that each method leaves of a scene with eight objects to count.

    python benchmarks/method_pictures.py [--out docs/methods/pictures]

The built-in model, at a keep rate of 0.6 in blocks 1, 2 and 3; ClusterAttention, which has no
keep rate, with its ratio. Methods that need training have no picture: without it their tokens mean nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import foveate as fv
from foveate.data import open_data
from foveate.drawing.tokens import tokens
from foveate.models.demo import demo_model

SCENE = 7  # eight objects to count; the first one has a single object
COLORS = 128  # small files; more colors look the same
NOT_DRAWN = ("FreeSlice",)  # measures the limit of speed and chooses nothing


OWN = {"ClusterAttention": fv.Reduction(fv.ClusterAttention(ratio=4))}  # as on its page: it has no keep rate


def reduction(name: str) -> fv.Reduction:
    """The method in three early blocks, or as it places itself."""
    return OWN.get(name) or fv.Reduction(getattr(fv, name)(), fv.KeepRate(0.6, blocks=(1, 2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/methods/pictures"), help="folder of the pictures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scene = Path(folder) / f"scene {SCENE}"
        open_data("scenes:counting", "val").read(SCENE).image.save(scene, format="PNG")
        for name in fv.list_methods():
            if getattr(fv, name).training_free and name not in NOT_DRAWN:
                drawn = tokens(reduction(name).apply_(demo_model()), [scene], name="built-in model")
                drawn.quantize(COLORS).save(args.out / f"{name.lower()}.png", optimize=True)
                print(name)


if __name__ == "__main__":
    main()
