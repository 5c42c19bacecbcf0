"""Progress where somebody watches: bars in a terminal and in a notebook, nothing in a file."""

import builtins
import sys
from types import SimpleNamespace

import pytest
import torch

import foveate as fv
import foveate.evaluation.bars as bars
from foveate.evaluation.progress import silent
from zoo import make


def test_a_given_callback_is_used_and_nobody_watches_a_file(monkeypatch):
    told = []
    with bars.shown_progress(lambda *given: told.append(given)) as progress:
        progress("decisions", 1, 2)
    assert told == [("decisions", 1, 2)]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with bars.shown_progress(None) as progress:
        assert progress is silent


def test_a_terminal_gets_bars(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then writes to a file as to a terminal
    with bars.shown_progress(None) as progress:
        progress("decisions", 3, 12, "soon")
    assert "decisions" in capsys.readouterr().err


def test_a_notebook_gets_one_line_that_changes(monkeypatch):
    shown = []
    line = SimpleNamespace(update=lambda content, raw: shown.append(content["text/html"]))

    def display(content, raw, display_id):
        shown.append(content["text/html"])
        return line

    class ZMQInteractiveShell:
        pass

    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with bars.shown_progress(None) as progress:
        for done in range(1000):
            progress("decisions", done, 999, "a < b")
    assert shown[0] == '<progress value="0" max="999"></progress> decisions: 0 of 999, a &lt; b'
    assert shown[-1].startswith('<progress value="999" max="999">')
    assert len(shown) < 50  # not a thousand updates


@pytest.mark.parametrize(("verb", "phase"), [("search", "finalists"), ("recover", "tuning, steps")])
def test_search_and_recover_draw_a_bar_for_whoever_watches(verb, phase, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    images = torch.randn(64, 3, 24, 24, generator=torch.Generator().manual_seed(3))
    for watched in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda watched=watched: watched, raising=False)
        if verb == "search":
            few = {"calibration": 32, "validation": 32, "trials": 1, "seconds": 0.05}
            fv.search(make("timm-cls"), images, macs=0.7, methods=["TopK"], **few)
        else:
            fv.recover(fv.reduce_(make("timm-cls"), "ToMe", fv.Keep({0: 20})), images, steps=1, minutes=5)
        assert (phase in capsys.readouterr().err) == watched
