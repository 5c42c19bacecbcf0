"""Choose the most faithful setting within a latency.

python examples/choose_for_a_latency.py PHOTOS 40   at most 40 ms for one image
python examples/choose_for_a_latency.py --offline   the small built-in model on built-in scenes, no download
"""

# %% What to work on
import sys

import timm

import foveate as fv
from foveate.evaluation.numbers import percent
from foveate.report.compare.question import milliseconds

WORDS = [word for word in sys.argv[1:] if not word.startswith("-")]
if WORDS:
    model = timm.create_model("deit_small_patch16_224", pretrained=True).eval()
    data, options = WORDS[0], {"limit": 500, "seconds": 5.0}
else:
    from foveate.models.demo import demo_model

    print("No folder of photographs given: using the built-in model on built-in scenes.")
    model, data, options = demo_model(), "scenes:", {"limit": 60, "seconds": 0.1}

# %% Latency is the time of one batch, so measure with the batch you will serve: one image
comparison = fv.compare(model, data, methods=["ToMe", "TopK"], budgets=(0.8, 0.6, 0.4), batch_size=1, **options)
for entry in comparison.entries:
    print(f"{entry.title:20} {milliseconds(entry, 1):6.1f} ms   {percent(entry.agreement):>5} % of decisions unchanged")

# %% Choose. The default latency is three quarters of the unreduced model's
latency = float(WORDS[1]) if len(WORDS) > 1 else 0.75 * milliseconds(comparison.entries[0], 1)
try:
    chosen = comparison.best(latency=latency)
    print(f"Within {latency:.1f} ms: {chosen.title}, {percent(chosen.agreement)} % of decisions unchanged.")
    print(chosen.python)
except ValueError as error:  # names the closest setting
    print(error)

# %% Require both a latency and an agreement
try:
    print(comparison.best(latency=latency, agreement=0.99).title)
except ValueError as error:
    print(error)
