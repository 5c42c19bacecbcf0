"""Cases by area, seed and number: the same three always give the same case."""

from __future__ import annotations

import random

from . import calls, commands, files
from .judging import Case
from .materials import Materials

AREAS = {"calls": 1000, "commands": 400, "files": 600}
"""Areas, and how the cases are shared out over them."""
DRAW = {"calls": calls.draw, "commands": commands.draw, "files": files.draw}


def draw_case(area: str, seed: int, number: int, materials: Materials) -> Case:
    return DRAW[area](random.Random(f"{area}/{seed}/{number}"), materials)
