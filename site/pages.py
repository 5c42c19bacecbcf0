"""Hooks of the docs site: pages made from README, CONTRIBUTING and CHANGELOG; links that leave ``docs/``.

A page may link to any file of the repository, as GitHub shows it. What is a page of the site stays a link within the
site; everything else leads to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
FROM_THE_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"(\]\()([^)\s#:]*)(#[^)\s]*)?(\))")
REFERENCE = """# Python reference

What `import foveate as fv` offers, from the docstrings.

::: foveate.api
    options: {show_root_heading: false, show_root_toc_entry: false}

"""
MORE = (
    "foveate.adapters.registry.inspect",
    "foveate.reductions.Reduction",
    "foveate.schedules",
    "foveate.report.compare.run.compare",
    "foveate.report.compare.comparison.Comparison",
    "foveate.tuning.searching.search",
    "foveate.tuning.recovering.recover",
    "foveate.evaluation.speed.measure_speed",
    "foveate.training.entry.train",
    "foveate.deploy.exporting.export",
    "foveate.deploy.loading.load_exported",
    "foveate.scale.predictor.Predictor",
    "foveate.models.by_name.load_model",
    "foveate.storage",
    "foveate.methods.registry.list_methods",
    "foveate.checks.check_method",
    "foveate.core.assignment.Assignment",
    "foveate.data.open.open_data",
    "foveate.data.loader.Loader",
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files of ``docs/``, and give every page a place."""
    for name, source in FROM_THE_ROOT.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "reference.md", content=REFERENCE + "\n\n".join(f"::: {n}" for n in MORE)))
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
