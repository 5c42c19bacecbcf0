"""Hooks of the docs site: pages made from README, CONTRIBUTING, CHANGELOG and the methods; links that leave ``docs/``.

A page may link to any file of the repository, as GitHub shows it. What is a page of the site stays a link within the
site; everything else leads to the repository.
"""

from __future__ import annotations

import csv
import inspect
import io
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
FROM_THE_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
PANEL = 320
"""Pixels of one side of a picture."""
LINK = re.compile(r"(\]\()([^)\s#:]*)(#[^)\s]*)?(\))")
REFERENCE = """# Python reference

What `import foveate as fv` offers, from the docstrings.

::: foveate.api
    options: {show_root_heading: false, show_root_toc_entry: false, show_docstring_description: false}

"""
MORE = (
    "foveate.reductions.Reduction",
    "foveate.schedules",
    "foveate.report.compare.run.compare",
    "foveate.report.compare.comparison.Comparison",
    "foveate.training.entry.train",
    "foveate.deploy.exporting.export",
    "foveate.deploy.loading.load_exported",
    "foveate.storage",
    "foveate.checks.check_method",
    "foveate.core.assignment.Assignment",
    "foveate.data.open.open_data",
    "foveate.data.loader.Loader",
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files of ``docs/``, and one for each method that has none."""
    for name, source in FROM_THE_ROOT.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "reference.md", content=REFERENCE + "\n\n".join(f"::: {n}" for n in MORE)))
    for name, content in method_pages().items():
        if files.get_file_from_path(name) is None:  # a page in docs/ comes first
            files.append(File.generated(config, name, content=content))
    complete_(config["nav"], sorted(file.src_uri for file in files.documentation_pages()))
    return files


def complete_(nav: list[Any], pages: list[str]) -> None:
    """List every page that ``mkdocs.yml`` does not name: experiments and methods below theirs, others as guides."""
    named = set(re.findall(r"[\w/.-]+\.md", str(nav)))
    sections = {title: below for entry in nav for title, below in entry.items()}
    for page in pages:
        if page not in named:
            kind = {"experiments": "Experiments", "methods": "Methods"}.get(page.partition("/")[0], "Guides")
            sections[kind].append(page)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links that leave ``docs/`` into links of the site or of the repository."""
    source = FROM_THE_ROOT.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    folder = posixpath.dirname(source)
    pages = {target: name for name, target in FROM_THE_ROOT.items()}

    def moved(match: re.Match[str]) -> str:
        before, path, anchor, after = match[1], match[2], match[3] or "", match[4]
        if not path:
            return match[0]
        target = posixpath.normpath(posixpath.join(folder, path))
        found = pages.get(target) or target.removeprefix("docs/") * target.startswith("docs/")
        if found and files.get_file_from_path(found) is not None:
            here = posixpath.dirname(page.file.src_uri)
            return f"{before}{posixpath.relpath(found, here or '.')}{anchor}{after}"
        if not (ROOT / target).exists():
            return match[0]  # a broken link, which the strict build reports
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{before}{config['extra']['repository']}/{kind}/main/{target}{anchor}{after}"

    return LINK.sub(moved, markdown)


def method_pages() -> dict[str, str | bytes]:
    """A page per method with its picture, and the list of them, by path."""
    from foveate.methods.registry import all_methods

    classes = dict(sorted(all_methods().items()))
    pages: dict[str, str | bytes] = {}
    lines = ["# Methods", "", "| method | kind | without training | in one sentence |", "|---|---|---|---|"]
    for name, cls in classes.items():
        path = f"methods/{name}.md"
        idea = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| [`{name}`]({path}) | {cls.kind} | {'yes' if cls.training_free else 'no'} | {idea} |")
        drawn = picture_of(cls)
        if drawn is not None:
            pages[f"methods/{name}.png"] = drawn
        pages[path] = method_page(cls, drawn is not None)
    return {"methods.md": "\n".join(lines) + "\n", **pages}


def method_page(cls: Any, drawn: bool) -> str:
    """Idea, picture, equations, when to use it, and what was measured, from the class and from ``results/``."""
    from foveate.cli.methods import describe_class

    entry = describe_class(cls)
    idea, _, rest = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
    parts = [f"# {cls.name}", idea]
    if drawn:
        about = "A built-in scene, and the tokens of the built-in model at 0.7 of the MACs"
        parts.append(f"![{about}: {cls.name}]({cls.name}.png)\n\n*{about}.*")
    parts += ["## In detail", rest] if rest else []
    parts += ["## When to use it", when_to_use(cls)]
    parts += ["## Use it", f"```python\nfv.reduce_(model, fv.{cls.name}(), fv.Budget(0.5))\n```"] if drawn else []
    if entry["options"]:
        rows = [
            f"| `{o['name']}` | `{o['default']}` | {' '.join(o['description'].split())} |" for o in entry["options"]
        ]
        parts += ["## Options", "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])]
    return "\n\n".join([*parts, "## Measured", measured(cls.name)]) + "\n"


def when_to_use(cls: Any) -> str:
    """What decides about a method, from what its class declares."""
    facts = ["On a trained model as it is." if cls.training_free else "When you train: it learns what to keep."]
    facts += ["It needs a class token."] if cls.needs_class_token else []
    facts += ["As a baseline, to see what a better choice of tokens is worth."] if cls.baseline else []
    dense = {"select": "Dropped patches keep old features in dense maps.", "merge": "Every patch stays in some token."}
    return " ".join([*facts, *filter(None, [dense.get(cls.kind, "")]), f"It acts at `{cls.site.value}` of a block."])


def measured(name: str) -> str:
    """The rows of ``results/training_free.csv`` for a method."""
    with (ROOT / "results" / "training_free.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(line for line in file if line[0] != "#") if row["method"] == name]
    if not rows:
        return "Not measured without training; see the [experiments](../experiments/README.md)."
    lines = [f"| {row['budget']} | {row['agreement_percent']} | {row['top1_percent']} |" for row in rows]
    head = ["| of the MACs | decisions unchanged, % | top-1, % |", "|---|---|---|"]
    source = "ViT-Tiny on 500 photographs, without training: `results/training_free.csv`."
    return "\n".join([*head, *lines]) + f"\n\n{source}"


def picture_of(cls: Any) -> bytes | None:
    """Draw what a method keeps of a scene; None for one that needs training or other settings."""
    import torch

    import foveate as fv
    from foveate.data.preprocessing import Preprocessing
    from foveate.data.scenes import scene
    from foveate.drawing.tokens import draw_tokens, stages
    from foveate.models.demo import demo_model

    if not cls.training_free:
        return None
    model, found = demo_model(), scene(4, split="val")
    preprocessing = Preprocessing.of(model)
    pixels = preprocessing.crop(found.image)
    try:
        fv.reduce_(model, cls(), fv.Budget(0.7))
    except ValueError:  # it fixes its own counts, or cannot reach this budget
        return None
    with torch.no_grad():
        trace = fv.trace(model, preprocessing.normalize(pixels)[None])
    drawn = draw_tokens(pixels, trace, stages(trace)[-1]).resize((PANEL, PANEL))
    sheet = Image.new("RGB", (2 * PANEL + 8, PANEL), "white")
    sheet.paste(found.image.resize((PANEL, PANEL)), (0, 0))
    sheet.paste(drawn, (PANEL + 8, 0))
    content = io.BytesIO()
    sheet.save(content, "PNG")
    return content.getvalue()
