"""A headless Chromium with the report, driven by Playwright. Skips, saying why, where either is missing."""

from __future__ import annotations

import os
import shutil
import warnings

import pytest

from browser.example_report import comparison, gallery, in_runtimes, segmentation
from browser.opening import opened
from foveate.report.page import render

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def _skip_aloud(missing: str) -> None:
    warnings.warn(f"The report was NOT tested in a browser: {missing}", stacklevel=2)
    pytest.skip(missing)


@pytest.fixture(scope="package")
def browser():
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        _skip_aloud("no Chromium was found (Debian: apt-get install chromium).")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip_aloud("the package playwright is missing (pip install playwright; no browser of its own is needed).")
    # Chromium refuses to sandbox itself for root; the page is our own
    flags = [*QUIET, "--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else list(QUIET)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=flags)
        yield running
        running.close()


@pytest.fixture(scope="package")
def report(tmp_path_factory):
    """Addresses of the report with labels and without."""
    folder, maps = tmp_path_factory.mktemp("report"), gallery()
    (folder / "index.html").write_text(render(comparison(), maps), encoding="utf-8")
    (folder / "unlabeled.html").write_text(render(comparison(labeled=False)), encoding="utf-8")
    (folder / "in_runtimes.html").write_text(render(in_runtimes(), maps), encoding="utf-8")
    (folder / "segmentation.html").write_text(render(segmentation()), encoding="utf-8")
    return folder


@pytest.fixture
def page(browser, report):
    with opened(browser, report / "index.html") as found:
        yield found
