"""Choose the most faithful setting that answers in time.

python examples/choose_for_a_latency.py PHOTOS 40   at most 40 ms for one image
python examples/choose_for_a_latency.py --offline   the small built-in model on built-in scenes, no download
"""

# %% What to work on
import sys

import timm

import foveate as fv
from foveate.report.compare.question import milliseconds

WORDS = [word for word in sys.argv[1:] if not word.startswith("-")]
if WORDS:
    model = timm.create_model("deit_small_patch16_224", pretrained=True).eval()
    data, options = WORDS[0], {"limit": 500, "seconds": 5.0}
else:
    from foveate.models.demo import demo_model

    print("No folder of photographs was given: this is the built-in model on built-in scenes.")
    model, data, options = demo_model(), "scenes:", {"limit": 60, "seconds": 0.1}

# %% Latency is the time of one batch, so measure with the batch you will serve: one image
comparison = fv.compare(model, data, methods=["tome", "topk"], budgets=(0.8, 0.6, 0.4), batch_size=1, **options)
for entry in comparison.entries:
    print(f"{entry.title:20} {milliseconds(entry, 1):6.1f} ms   {entry.agreement:5.1f} % of decisions unchanged")

# %% Ask. Without a wish of your own: three quarters of what the unreduced model takes
wish = float(WORDS[1]) if len(WORDS) > 1 else 0.75 * milliseconds(comparison.entries[0], 1)
try:
    chosen = comparison.best(latency=wish)
    print(f"Within {wish:.1f} ms: {chosen.title}, {chosen.agreement:.1f} % of decisions unchanged.\n{chosen.python}")
except ValueError as error:  # says what comes nearest
    print(error)

# %% A time that must hold, and decisions that must hold: both can be asked for
try:
    print(comparison.best(latency=wish, agreement=0.99).title)
except ValueError as error:
    print(error)
