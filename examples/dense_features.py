"""Dense features from a reduced DINOv2: every patch has features, with far fewer tokens computed.

python examples/dense_features.py photo.jpg         weights from the hub
python examples/dense_features.py --offline         untrained weights and a built-in scene: shapes and cost only
"""

# %% The model, with its weights if the hub can be reached
import sys
from pathlib import Path

import timm
import torch
from torch.nn.functional import cosine_similarity

import foveate as fv
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.drawing.pixels import rescale, to_pil_image

OFFLINE = "--offline" in sys.argv
PHOTO = [word for word in sys.argv[1:] if not word.startswith("-")]
NAME, SIZE = "vit_small_patch14_dinov2", 224
try:
    model = timm.create_model(NAME, pretrained=not OFFLINE, img_size=SIZE, num_classes=0).eval()
except Exception as error:  # no network, or the hub is down: many exception types
    print(f"The weights could not be fetched ({type(error).__name__}).")
    OFFLINE, model = True, timm.create_model(NAME, img_size=SIZE, num_classes=0).eval()
if OFFLINE:
    print("The weights are random: shapes and cost below are right, similarities and colors mean nothing.")

# %% The image
if PHOTO:
    picture = open_image(Path(PHOTO[0]))
else:
    from foveate.data.scenes import scene

    picture = scene(7, split="val", size=SIZE).image
images = Preprocessing.of(model).evaluation()(picture)[None]

# %% Features of all patches, then with tokens merged down to 60 % of the MACs
with torch.inference_mode():
    full = fv.features(model, images)
unreduced = fv.cost(model)
fv.reduce_(model, fv.ToMe(), fv.Budget(0.6))
with torch.inference_mode():
    reduced = fv.features(model, images)
share = fv.cost(model).macs / unreduced.macs
print(
    f"features {tuple(reduced.shape)} as before, {fv.cost(model).tokens[-1]} tokens instead of {unreduced.tokens[-1]}"
)
print(f"{share:.0%} of the MACs, mean cosine similarity {float(cosine_similarity(full, reduced).mean()):.3f}")


# %% Look: the three main directions of the unreduced features as colors, for both
def colored(features: torch.Tensor, directions: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Return bytes (3, H, W) from features (1, C, H, W)."""
    flat = (features[0].flatten(1).T - mean) @ directions
    colors = torch.stack([rescale(column) for column in flat.T]).view(3, *features.shape[-2:])
    return (255 * colors).round().to(torch.uint8)


tokens = full[0].flatten(1).T
mean = tokens.mean(dim=0)
directions = torch.linalg.svd(tokens - mean, full_matrices=False).Vh[:3].T
both = torch.cat([colored(full, directions, mean), colored(reduced, directions, mean)], dim=2)
to_pil_image(both.repeat_interleave(14, dim=1).repeat_interleave(14, dim=2)).save("dense-features.png")
print("Unreduced (left) and reduced (right) are in dense-features.png.")
