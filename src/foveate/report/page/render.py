"""A comparison and its gallery as one HTML file that opens offline."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html import escape
from importlib.resources import files
from typing import Any, Protocol

import foveate
from foveate.report.page import words
from foveate.report.page.table import refusals, table

SCRIPTS = ("page.js", "chart.js", "tokens.js")
ENVIRONMENT = {"cpu": "Processor", "cores": "Cores", "threads": "Threads", "device": "Device", "dtype": "Numbers"}


class Plain(Protocol):
    """A value that can say itself in plain data."""

    def as_dict(self) -> dict[str, Any]: ...


def render(comparison: Plain, gallery: Plain | None = None) -> str:
    """The page's text; write it to one file, and that file is the whole report."""
    found: dict[str, Any] = _finite(comparison.as_dict())
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
        "sentence": _headline(found["recommendation"]["sentence"]),
        "figures": _figures(found),
        "note": _note(found["data"]),
        "python": _python(found["recommendation"]["python"]),
        "summary": escape(_chart_in_words(found)),
        "table": table(found["entries"], recommended),
        "refused": refusals(found["refused"]),
        "about": _about(found),
        "method": escape(_how_measured(found)),
        "version": escape(foveate.__version__),
        "data": _embedded({"comparison": found, "gallery": tokens}),
    }
    # in one pass: what a user's text says is never taken for a place to fill
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing may be fetched, and nothing runs but the page's own script."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _finite(value: Any) -> Any:
    """Plain data that JSON can hold: what is not a number is missing, tuples are lists."""
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in: no ``<`` is left in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _headline(text: str) -> str:
    """The first sentence large, what qualifies it below."""
    first, *rest = re.split(r"(?<=\.) (?=[A-Z])", text.replace(" %", f"{words.GAP}%"), maxsplit=1)
    below = f'<p class="lead">{escape(rest[0])}</p>' if rest else ""
    return f"<h1>{escape(first)}</h1>{below}"


def _notices(found: dict[str, Any]) -> str:
    said = []
    if found["demonstration"]:
        said.append(
            "This is the built-in demonstration: a small model of foveate's own on generated scenes. "
            "It shows how the report works and says nothing about your model. "
            "For that, run foveate compare MODEL --data FOLDER."
        )
    if not found["complete"]:
        said.append("The run was interrupted. Here is what had been measured; some settings may be missing.")
    return "".join(f'<p class="notice">{escape(text)}</p>' for text in said)


def _note(data: dict[str, Any]) -> str:
    """Why there is no accuracy, where there is none."""
    return f'<p class="lead">{escape(str(data["note"]))}</p>' if data.get("note") else ""


def _figures(found: dict[str, Any]) -> str:
    """The three numbers of the recommended setting, large."""
    place = found["recommendation"]["entry"]
    if place is None:
        return ""
    entry = found["entries"][place]
    shown = {
        "as fast as the unreduced model": words.factor(entry["speed_up"]),
        "of decisions unchanged": words.percent(entry["agreement"]),
        "of the multiply-accumulates": words.share(entry["mac_ratio"]),
    }
    inner = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in shown.items()
        if value != words.NOTHING
    )
    return f'<dl class="figures">{inner}</dl>'


def _python(code: str) -> str:
    if not code:
        return ""
    copy = '<button type="button" class="copy" data-copy="recommended-python" hidden>Copy</button>'
    return f'<div class="code"><pre id="recommended-python"><code>{escape(code)}</code></pre>{copy}</div>'


def _chart_in_words(found: dict[str, Any]) -> str:
    """What a reader who cannot see the chart is told of it."""
    front = [entry for entry in found["entries"] if entry["pareto"]]
    told = "; ".join(
        f"{words.setting_name(e)}: {words.percent(e['agreement'])} agreement at {words.rate(e['images_per_second'])} "
        f"images per second, {words.share(e['mac_ratio'])} of the MACs"
        for e in front
    )
    return f"{len(found['entries'])} settings. On the front, which no other setting beats in both: {told}."


def _how_measured(found: dict[str, Any]) -> str:
    images = found["data"].get("images")
    number = f"{images:,} images" if isinstance(images, int) else "the images"
    return (
        f"Every setting saw the same {number}; agreement and KL compare its predictions on them with those of the "
        "unreduced model, and accuracy, where there is any, with the labels. "
        "Speed is the median over rounds in which the unreduced model, the setting and a model that cuts tokens "
        "blindly ran in turn, so that drift hits all alike; a ratio is as good as its quartiles are close."
    )


def _about(found: dict[str, Any]) -> str:
    model, data, options = found["model"], found["data"], found["options"]
    environment = {ENVIRONMENT.get(key, key): words.in_words(value) for key, value in found["environment"].items()}
    size, grid = model.get("image_size"), model.get("grid")
    of_model = {
        "Name": words.in_words(model["name"]),
        "Parameters": words.amount(model.get("params")),
        "MACs": words.amount(model.get("macs")),
        "Image": f" {words.TIMES} ".join(map(str, size[1:])) if size else words.NOTHING,
        "Patches": f" {words.TIMES} ".join(map(str, grid)) if grid else words.NOTHING,
        "Blocks": words.in_words(model.get("blocks")),
        "Classes": words.in_words(model.get("num_classes")),
    }
    of_data = {
        "Source": words.in_words(data.get("source")),
        "Split": words.in_words(data.get("split")),
        "Images": words.in_words(data.get("images")),
        "Labels": "used" if data.get("labelled") else "none",
        "Broken images left out": words.in_words(data.get("broken")),
    }
    of_run = {key.replace("_", " ").capitalize(): words.in_words(value) for key, value in options.items()}
    boxes = {"Model": of_model, "Data": of_data, "Options": of_run, "Environment": environment}
    return "".join(f"<section><h3>{title}</h3>{words.definitions(rows)}</section>" for title, rows in boxes.items())
