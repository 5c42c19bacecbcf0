"""See which patches of an image a reduced model keeps, merges or drops.

python examples/see_what_it_keeps.py photo.jpg      with a pretrained DeiT
python examples/see_what_it_keeps.py --offline      the small built-in model on a built-in scene, no download
"""

# %% An image and a model
import sys
from pathlib import Path

import timm

import foveate as fv
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.drawing.tokens import draw_tokens

PHOTO = [word for word in sys.argv[1:] if not word.startswith("-")]
if PHOTO:
    model, picture = timm.create_model("deit_small_patch16_224", pretrained=True).eval(), open_image(Path(PHOTO[0]))
else:
    from foveate.data.scenes import scene
    from foveate.models.demo import demo_model

    print("No photograph given: using the built-in model on a built-in scene.")
    model, picture = demo_model(), scene(4, split="val").image

preprocessing = Preprocessing.of(model)
pixels = preprocessing.crop(picture)  # what the model sees, as bytes
images = preprocessing.normalize(pixels)[None]

# %% Three ways to halve the MACs: drop, fuse, merge
for method in (fv.TopK(), fv.EViT(), fv.ToMe()):
    name = type(method).__name__
    fv.reduce_(model, method, fv.Budget(0.5))
    trace = fv.trace(model, images)
    owner = trace.owner(-1)[0]  # the token of each patch, -1 if it was dropped
    held = owner[owner >= 0].bincount()
    print(
        f"{name}: {trace.counts[-1]} tokens of {len(owner)} patches; {int((owner < 0).sum())} patches dropped, "
        f"the largest token holds {int(held.max())}."
    )
    file = f"kept-by-{name.lower()}.png"
    draw_tokens(pixels, trace, block=-1).save(file)
    print(f"  drawn in {file}")
    fv.restore_(model)  # back to the unreduced model, bit for bit
