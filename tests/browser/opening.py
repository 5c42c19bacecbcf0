"""The report, opened in a browser."""

from __future__ import annotations

from contextlib import contextmanager

from browser.example_report import FIGURES

READING = "willReadFrequently"  # what Chromium says when these tests read colours off the maps
MEASURED = [row for row in FIGURES if row[5] is not None]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@contextmanager
def opened(browser, path, **options):
    """The page, which may neither complain nor ask for anything but itself."""
    context = browser.new_context(**({"viewport": WIDE, "reduced_motion": "reduce"} | options))
    page, complaints, requests = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text) if READING not in message.text else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    context.close()


def points(page):
    return page.locator("#plot .point:visible")
