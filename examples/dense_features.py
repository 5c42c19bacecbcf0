"""Dense features from a reduced model: every patch has features, with far fewer tokens computed.

python examples/dense_features.py photo.jpg         DINOv2, with weights from the hub
python examples/dense_features.py --offline         the small built-in model on a built-in scene, no download
"""

# %% The model, and the image as it sees it
import sys
from pathlib import Path

import timm
import torch
from torch.nn.functional import cosine_similarity

import foveate as fv
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.drawing.pixels import enlarge, heat, rescale, to_pil_image
from foveate.drawing.sheets import Panel, tile

WIDTH = 336  # of each panel
PHOTO = [word for word in sys.argv[1:] if not word.startswith("-")]
if PHOTO:
    name, picture = "DINOv2", open_image(Path(PHOTO[0]))
    model = timm.create_model("vit_small_patch14_dinov2", pretrained=True, img_size=448, num_classes=0).eval()
else:
    from foveate.data import open_data
    from foveate.models.demo import demo_model

    print("No photograph given: using the built-in model on the first of the built-in scenes.")
    name, picture, model = "the built-in model", open_data("scenes:counting", "val").read(0).image, demo_model()
preprocessing = Preprocessing.of(model)
pixels = preprocessing.crop(picture)
images = preprocessing.normalize(pixels)[None]

# %% Features (1, C, rows, columns) of all patches, then with tokens merged down to 60 % of the MACs
with torch.inference_mode():
    full = fv.features(model, images)
    unreduced = fv.cost(model)
    fv.reduce_(model, fv.ToMe(), fv.Budget(0.6))
    reduced = fv.features(model, images)
left = fv.cost(model)
alike = cosine_similarity(full, reduced)[0]  # (rows, columns)
print(f"features {tuple(reduced.shape)} as before, {left.tokens[-1]} tokens instead of {unreduced.tokens[-1]}")
print(f"{left.macs / unreduced.macs:.0%} of the MACs, mean cosine similarity {float(alike.mean()):.3f}")

# %% Look: the three main directions of the unreduced features as colors, for both, and where the two differ
both = torch.cat([full, reduced], dim=3)[0]  # side by side, so that equal features have equal colors
flat = full[0].flatten(1).T
directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False).Vh[:3]
values = torch.einsum("dc,chw->dhw", directions, both - flat.mean(dim=0)[:, None, None])
colors = torch.stack([rescale(value) for value in values]).mul(255).round().to(torch.uint8)
before, after = (enlarge(part, WIDTH) for part in colors.chunk(2, dim=2))
panels = [
    Panel(to_pil_image(pixels).resize(before.size), "what the model sees"),
    Panel(before, f"unreduced: {unreduced.tokens[-1]} tokens"),
    Panel(after, f"ToMe at 0.6: {left.tokens[-1]} tokens"),
    Panel(enlarge(heat(1 - alike), WIDTH), "bright where the two differ most"),
]
tile(f"Features of {name}, their three main directions as red, green and blue", [panels]).save("dense-features.png")
print("Drawn in dense-features.png.")
