"""The docs site: built strictly, without a network; pages open without errors, links lead somewhere, search works."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import foveate as fv

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")

ROOT = Path(__file__).resolve().parents[2]


class Links(HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.scripts: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors |= {found[key] or "" for key in ("id", "name") if key in found}
        if tag in ("a", "img") and (target := found.get("href") or found.get("src")):
            self.targets.add(target)
        if tag in ("script", "link", "img") and (source := found.get("src") or found.get("href")):
            self.scripts |= {source} if found.get("rel") not in ("canonical", "prev", "next") else set()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    variables = {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text("utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


def test_there_is_a_page_for_everything(site: Path) -> None:
    markdown = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    renamed = {Path("index") if path.name == "README" and path.parent == Path() else path for path in markdown}
    missing = [path for path in renamed if path not in built and path.with_name("index") not in built]
    assert not missing
    assert {Path("index"), Path("reference"), Path("changelog"), Path("contributing")} <= built
    assert len([path for path in built if path.parent.name == "methods"]) > 25


def test_the_reference_says_what_each_function_does(site: Path) -> None:
    text = " ".join(re.sub(r"<[^>]+>", "", (site / "reference.html").read_text("utf-8")).split())
    for function in (fv.cost, fv.reduce_, fv.compare, fv.search, fv.train, fv.export, fv.measure_speed):
        first = (function.__doc__ or "").partition("\n")[0].replace("`", "")
        assert first in html.unescape(text), f"{function.__name__} is not described"


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    broken = []
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            lost = place in pages and parts.fragment and unquote(parts.fragment) not in pages[place].anchors
            if not place.exists() or lost:
                broken.append(f"{path.relative_to(site)}: {target}")
    assert broken == []


def test_nothing_is_fetched_from_a_server(pages: dict[Path, Links]) -> None:
    assert not {source for links in pages.values() for source in links.scripts if re.match(r"(https?:)?//", source)}


def test_pages_open_without_errors_or_a_sideways_scroll(browser, site: Path, pages: dict[Path, Links]) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, offline=True)
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    for path in sorted(pages):
        if path.parent.name != "methods" or path.stem in ("evit", "tome", "index"):  # made alike
            page.goto(path.as_uri(), wait_until="load")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert not errors, f"{path.name}: {errors}"
            assert wide <= 390, f"{path.name} is {wide} px wide"
    context.close()


def test_search_works_from_a_disk(browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("proportional attention")
    page.wait_for_selector(".md-search-result__item", timeout=20_000)
    assert page.locator(".md-search-result__item").count() > 0
    context.close()
