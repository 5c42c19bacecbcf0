"""``fv.search``: a constraint in, a ``Reduction`` out."""

from foveate.tuning.constraints import Constraints
from foveate.tuning.searching import Found, search

__all__ = ["Constraints", "Found", "search"]
