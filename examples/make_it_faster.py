"""Make a pretrained model faster, and know what that costs.

    python examples/make_it_faster.py PHOTOS            a folder of images that your model knows
    python examples/make_it_faster.py --offline         the small built-in model on built-in scenes, no download

Cells begin with `# %%`, so that editors run them one by one, as in a notebook.
"""

# %% What to work on
import sys

import timm
import torch

import foveate as fv

PHOTOS = [word for word in sys.argv[1:] if not word.startswith("-")]
if PHOTOS:
    model = timm.create_model("deit_small_patch16_224", pretrained=True).eval()
    data, options = PHOTOS[0], {"limit": 500}
else:
    from foveate.models.demo import demo_model

    print("No folder of photographs was given: this is the built-in model on built-in scenes.")
    model, data, options = demo_model(), "scenes:", {"limit": 100, "seconds": 0.1}

# %% Compare. A few methods, two budgets; leave both out to try everything
comparison = fv.compare(model, data, methods=["tome", "evit", "ward"], budgets=(0.8, 0.6), **options)
print(comparison.recommendation.sentence)
for entry in comparison.entries:
    print(f"{entry.title:20} {entry.speed_up:5.2f}x   {entry.agreement:5.1f} % of decisions unchanged")

# %% Everything in one page, to look at and to pass on
folder = comparison.save("make-it-faster")
print(f"The whole report: {folder / 'index.html'}")

# %% Apply the fastest setting that leaves 95 % of the decisions unchanged
chosen = comparison.best(agreement=0.95)
print(f"Chosen: {chosen.title}\n{chosen.python}")
chosen.apply_(model)  # does what the two lines do

# %% The model is used as before
size = comparison.model["image_size"]
with torch.inference_mode():
    print("logits", tuple(model(torch.rand(2, *size)).shape), fv.cost(model))
