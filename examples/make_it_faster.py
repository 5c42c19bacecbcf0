"""Make a pretrained model faster, and measure what that costs.

    python examples/make_it_faster.py PHOTOS            a folder of images of the kind that your model was trained on
    python examples/make_it_faster.py --offline         the small built-in model on built-in scenes, no download

Cells begin with `# %%`, so editors can run them one by one, as in a notebook.
"""

# %% What to work on
import sys

import timm
import torch

import foveate as fv
from foveate.evaluation.numbers import percent

PHOTOS = [word for word in sys.argv[1:] if not word.startswith("-")]
if PHOTOS:
    model = timm.create_model("deit_small_patch16_224", pretrained=True).eval()
    data, options = PHOTOS[0], {"limit": 500}
else:
    from foveate.models.demo import demo_model

    print("No folder of photographs given: using the built-in model on built-in scenes.")
    model, data, options = demo_model(), "scenes:counting", {"limit": 100, "seconds": 0.1}

# %% Compare. A few methods, two budgets; leave both out to try everything
comparison = fv.compare(model, data, methods=["ToMe", "EViT", "Ward"], budgets=(0.8, 0.6), **options)
for entry in comparison.entries:
    bar = "\N{FULL BLOCK}" * round(15 * entry.speed_up)
    print(f"{entry.title:18} {bar:32} {entry.speed_up:5.2f}x   {percent(entry.agreement):>5} % of decisions unchanged")

# %% Apply the fastest setting that leaves 95 % of the decisions unchanged
chosen = comparison.best(agreement=0.95)
print(f"\nChosen: {chosen.title}\n{chosen.python}")
before = fv.cost(model)
chosen.apply_(model)  # same as running the printed code
after = fv.cost(model)
print(f"{before.macs / 1e6:.0f} M multiply-accumulates before, {after.macs / 1e6:.0f} M after, the same weights")

# %% Use the model as before
with torch.inference_mode():
    logits = model(torch.rand(2, *comparison.model["image_size"]))
print(f"logits {tuple(logits.shape)}, as before")

# %% Keep both: the model, and everything that was measured as one page to view and share
print(f"Model:  {fv.save(model, 'faster-model')}   (fv.load reads it)")
print(f"Report: {comparison.save('make-it-faster') / 'index.html'}")
