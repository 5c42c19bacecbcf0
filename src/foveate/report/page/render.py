"""A comparison and its gallery as one HTML file that opens offline."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
import sys
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import foveate
from foveate.evaluation.columns import COLUMNS
from foveate.report.compare.recommend import BUSY
from foveate.report.page import words
from foveate.report.page.predictions import PredictedPictures, predicted_pictures
from foveate.report.page.runtimes import in_runtimes
from foveate.report.page.table import refusals, table

NOISE = 0.15
"""Quartiles of a speed-up that lie further apart than this are shown as a range: the machine was not quiet."""
TOP_1 = "top\N{NON-BREAKING HYPHEN}1"
SCRIPTS = ("page.js", "chart.js", "tokens.js")
ENVIRONMENT = {
    "cpu": "Processor",
    "cores": "Cores",
    "threads": "Threads",
    "device": "Device",
    "dtype": "Precision",
    "drift": "Unreduced speed varied by",
}


class Plain(Protocol):
    """A value with a plain-data form."""

    def as_dict(self) -> dict[str, Any]: ...


def render(comparison: Plain, gallery: Plain | None = None, predictions: PredictedPictures | None = None) -> str:
    """Render a comparison as the text of one HTML file.

    Args:
        comparison: The measurements, e.g. a ``Comparison``.
        gallery: Token maps from ``collect_gallery``; None leaves them out.
        predictions: Predictions drawn over a few images; None leaves them out.

    Returns:
        HTML that contains everything it needs: write it to a file, and that file is the whole report.
    """
    found: dict[str, Any] = _mailable(_finite(comparison.as_dict()))
    tokens = _finite(gallery.as_dict()) if gallery is not None else None
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in SCRIPTS)
    recommended = found["recommendation"]["entry"]
    parts = {
        "policy": _policy(style, script),
        "title": escape(f"{found['model']['name']}: how much faster?"),
        "style": style,
        "script": script,
        "model": escape(str(found["model"]["name"])),
        "notices": _notices(found),
        "sentence": _headline(found),
        "figures": _figures(found),
        "note": _note(found),
        "python": _python(found["recommendation"]["python"]),
        "summary": escape(_chart_in_words(found)),
        "table": table(found["entries"], recommended),
        "refused": refusals(found["refused"]),
        "runtimes": in_runtimes(found),
        "predictions": predicted_pictures(predictions),
        "about": _about(found),
        "method": escape(_how_measured(found)),
        "version": escape(foveate.__version__),
        "data": _embedded({"comparison": found, "gallery": tokens, "texts": _texts(found["entries"])}),
    }
    # in one pass: placeholders inside a user's text are left alone
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return a policy by which nothing is fetched and only the page's own script runs."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _finite(value: Any) -> Any:
    """Return plain data that JSON can hold: NaN and infinity become None, tuples become lists."""
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mailable(value: Any) -> Any:
    """Return plain data in which absolute paths are cut to their last names."""
    if isinstance(value, dict):
        return {key: _mailable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_mailable(one) for one in value]
    return words.without_folders(value) if isinstance(value, str) else value


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the element around it: it contains no ``<``."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _texts(entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the numbers of each entry as the table shows them, without units, so that the script uses the same."""
    return [{c.name: c.text(entry[c.name]) for c in COLUMNS if c.title and c.name in entry} for entry in entries]


def _noisy(found: dict[str, Any]) -> bool:
    """Whether the unreduced model's own speed varied so much that ratios are wrong, or the chosen ratio itself did."""
    place, drift = found["recommendation"]["entry"], found["environment"].get("drift")
    if words.known(drift) and drift >= BUSY:
        return True
    quartiles = None if place is None else found["entries"][place].get("speed_up_quartiles")
    if not quartiles or not all(words.known(one) for one in quartiles):
        return False
    return bool(quartiles[1] > (1 + NOISE) * quartiles[0])


def _headline(found: dict[str, Any]) -> str:
    """Return the first sentence as the headline, the rest below it. Noise is said as large as the speed-up."""
    text = found["recommendation"]["sentence"]
    first, *rest = re.split(
        r"(?<=\.) (?=[A-Z])", text.replace(" %", f"{words.GAP}%").replace("top-1", TOP_1), maxsplit=1
    )
    below = f'<p class="lead">{escape(rest[0])}</p>' if rest else ""
    noise = " The machine was not quiet." if _noisy(found) else ""
    return f"<h1>{escape(first)}{noise}</h1>{below}"


def _notices(found: dict[str, Any]) -> str:
    notices = []
    if found["demonstration"]:
        notices.append(
            "This is the built-in demonstration: a small model of foveate's own on generated scenes. "
            "It shows how the report works, but says nothing about your model. "
            "To compare settings for your model, run foveate compare MODEL --data FOLDER."
        )
    if not found["complete"]:
        notices.append("The run was interrupted. These are the results up to that point; some settings may be missing.")
    return "".join(f'<p class="notice">{escape(text)}</p>' for text in notices)


def _note(found: dict[str, Any]) -> str:
    """Return the note on the data, e.g. why there is no accuracy; empty if the sentence above says it."""
    note = str(found["data"].get("note") or "")
    return f'<p class="lead">{escape(note)}</p>' if note and note not in found["recommendation"]["sentence"] else ""


def _figures(found: dict[str, Any]) -> str:
    """Show the three main numbers of the recommended setting."""
    place = found["recommendation"]["entry"]
    if place is None:
        return ""
    entry = found["entries"][place]
    noisy = _noisy(found)
    loud = ' class="noisy"' if noisy else ""
    speed, of_speed = _speed(entry, noisy)
    shown = {
        of_speed: speed,
        f"of {found['data'].get('agreement_of', 'decisions')} unchanged": words.figure(entry, "agreement"),
        "of the multiply-accumulates": words.whole_percent(entry["mac_ratio"]),
    }
    inner = "".join(
        f"<div{loud if name == of_speed else ''}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in shown.items()
        if value != words.NOTHING
    )
    return f'<dl class="figures">{inner}</dl>'


def _speed(entry: dict[str, Any], noisy: bool) -> tuple[str, str]:
    """Return the speed-up and what it is; a range instead of a number if the machine was not quiet."""
    quartiles = entry.get("speed_up_quartiles")
    name = "as fast as the unreduced model"
    if noisy and quartiles and all(words.known(one) for one in quartiles):
        span = f"{quartiles[0]:.2f}{words.DASH}{quartiles[1]:.2f}{words.TIMES}"
        return span, f"{name}, not to be trusted: measure again when the machine is quiet"
    return words.figure(entry, "speed_up"), name


def _python(code: str) -> str:
    if not code:
        return ""
    copy = '<button type="button" class="copy" data-copy="recommended-python" hidden>Copy</button>'
    return f'<div class="code"><pre id="recommended-python"><code>{escape(code)}</code></pre>{copy}</div>'


def _chart_in_words(found: dict[str, Any]) -> str:
    """Describe the chart for readers who cannot see it."""
    front = [entry for entry in found["entries"] if entry["pareto"]]
    described = "; ".join(
        f"{words.setting_name(e)}: {words.figure(e, 'agreement')} agreement at {words.figure(e, 'images_per_second')} "
        f"images per second, {words.whole_percent(e['mac_ratio'])} of the MACs"
        for e in front
    )
    return f"{len(found['entries'])} settings. On the Pareto front, which no other setting beats: {described}."


def _how_measured(found: dict[str, Any]) -> str:
    images = found["data"].get("images")
    number = f"{images:,} images" if isinstance(images, int) else "the images"
    return (
        f"Every setting saw the same {number}. Agreement and KL compare its predictions with those of the unreduced "
        "model; accuracy, if there are labels, compares them with the labels. "
        "Speed is the median over rounds in which the unreduced model, the setting and a model that drops tokens "
        "blindly took turns, so that drift affects all of them. The closer the quartiles, the more reliable the ratio."
    )


def _command() -> str:
    """Return the command that is running, if it is foveate's, or the function that a program called."""
    program = Path(sys.argv[0])
    if program.stem != "foveate" and program.parent.name != "foveate":
        return "fv.compare in Python"
    return words.without_folders(shlex.join(["foveate", *sys.argv[1:]]))


def _of_machine(key: str, value: Any) -> str:
    return f"{value:.2f}{words.TIMES}" if key == "drift" and words.known(value) else words.in_words(value)


def _about(found: dict[str, Any]) -> str:
    model, data, options = found["model"], found["data"], found["options"]
    environment = {ENVIRONMENT.get(key, key): _of_machine(key, value) for key, value in found["environment"].items()}
    size, grid = model.get("image_size"), model.get("grid")
    of_model = {
        "Name": words.in_words(model["name"]),
        "Parameters": words.amount(model.get("params")),
        "MACs": words.amount(model.get("macs")),
        "Image": f" {words.TIMES} ".join(map(str, size[1:])) if size else words.NOTHING,
        "Patches": f" {words.TIMES} ".join(map(str, grid)) if grid else words.NOTHING,
        "Blocks": words.in_words(model.get("blocks")),
        "Classes": words.in_words(model.get("num_classes")),
        "Weights": words.in_words(model.get("weights")),
        "Fingerprint": words.in_words(model.get("fingerprint")),
    }
    of_data = {
        "Source": words.in_words(data.get("source")),
        "Split": words.in_words(data.get("split")),
        "Images": words.in_words(data.get("images")),
        "Labels": "used" if data.get("labeled") else "none",
        "Broken images skipped": words.in_words(data.get("broken")),
    }
    written = {"Written": datetime.now().strftime("%Y-%m-%d %H:%M"), "Command": _command()}
    of_run = written | {key.replace("_", " ").capitalize(): words.in_words(value) for key, value in options.items()}
    boxes = {"Model": of_model, "Data": of_data, "Options": of_run, "Environment": environment}
    return "".join(f"<section><h3>{title}</h3>{words.definitions(rows)}</section>" for title, rows in boxes.items())
