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
    model, data, options = demo_model(), "scenes:counting", {"limit": 100, "seconds": 0.3}

# %% The limit in milliseconds. Default: three quarters of what the unreduced model takes
if len(WORDS) > 1:
    limit = float(WORDS[1])
else:
    limit = 750 / fv.measure_speed(model, "ToMe", 0.5, batch_size=1, seconds=1.0).unreduced_per_second

# %% Latency is the time of one batch, so measure with the batch you will serve: one image
comparison = fv.compare(
    model,
    data,
    methods=["Ward", "ToMe", "TopK"],
    budgets=(0.8, 0.6, 0.4),
    batch_size=1,
    latency_ms=limit,
    **options,
)
chosen = comparison.recommendation.entry  # None if nothing is fast enough; the sentence then names the closest

# %% Every setting as a bar, the fastest first
slowest = max(milliseconds(entry, 1) for entry in comparison.entries)
print(f"\nAt most {limit:.1f} ms for one image:")
for number, entry in sorted(enumerate(comparison.entries), key=lambda item: milliseconds(item[1], 1)):
    time = milliseconds(entry, 1)
    bar = ("\N{FULL BLOCK}" if time <= limit else "\N{LIGHT SHADE}") * round(30 * time / slowest)
    mark = "  <- chosen" if number == chosen else ""
    print(f"{entry.title:18} {bar:30} {time:6.1f} ms   {percent(entry.agreement):>5} % unchanged{mark}")

# %% The decision, the code that applies it, and a page with the chart
print(f"\n{comparison.recommendation.sentence}\n\n{comparison.recommendation.python}")
print(f"Report: {comparison.save('choose-for-a-latency') / 'index.html'}")
