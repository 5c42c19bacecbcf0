"""See which patches of an image a reduced model keeps, merges or drops.

python examples/see_what_it_keeps.py photo.jpg      with a pretrained DeiT
python examples/see_what_it_keeps.py --offline      the small built-in model on a built-in scene, no download
"""

# %% An image and a model
import sys
from pathlib import Path

import timm
import torch
from timm.data import ImageNetInfo

import foveate as fv
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.drawing.pixels import fit_to_grid, to_pil_image
from foveate.drawing.sheets import Panel, tile
from foveate.drawing.tokens import TokenMap, draw_map, legend, stages

WIDTH = 300  # of each panel
PHOTO = [word for word in sys.argv[1:] if not word.startswith("-")]
if PHOTO:
    model, picture = timm.create_model("deit_small_patch16_224", pretrained=True).eval(), open_image(Path(PHOTO[0]))
    classes = ImageNetInfo().label_descriptions()
else:
    from foveate.data import open_data
    from foveate.models.demo import demo_classes, demo_model

    print("No photograph given: using the built-in model on the first of the built-in scenes.")
    model, picture, classes = demo_model(), open_data("scenes:counting", "val").read(0).image, demo_classes()

preprocessing = Preprocessing.of(model)
pixels = preprocessing.crop(picture)  # what the model sees, as bytes
images = preprocessing.normalize(pixels)[None]


def decision() -> str:
    """Return the model's decision in words."""
    with torch.inference_mode():
        share, number = model(images)[0].softmax(0).max(0)
    return f"{classes[int(number)]}, {float(share):.0%}"


# %% Three ways to save a third of the MACs: drop patches, fuse what is dropped into one token, merge what is alike
print(f"{'unreduced':10} {decision()}")
groups, maps = [], []
for method in (fv.TopK(), fv.EViT(), fv.Ward()):
    with fv.reduced(model, method, fv.Budget(0.65)):  # restored at the end, bit for bit
        trace = fv.trace(model, images)
        print(f"{method.name:10} {decision()}; tokens after each block: {', '.join(map(str, trace.counts))}")
    found = [TokenMap.of(trace, block) for block in stages(trace, most=3)]
    whole = to_pil_image(fit_to_grid(pixels, found[0].grid, WIDTH))
    drawn = [Panel(draw_map(pixels, one, WIDTH), f"{method.name}, {one.caption}") for one in found]
    groups.append([Panel(whole, "what the model sees"), *drawn])
    maps += found

# %% Everything on one sheet
tile("The same picture with 65 % of the MACs", groups, legend(maps)).save("what-it-keeps.png")
print("Drawn in what-it-keeps.png.")
