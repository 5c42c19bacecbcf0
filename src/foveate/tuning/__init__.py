"""``fv.search``: a constraint in, a ``Reduction`` out. ``fv.recover``: a short tuning without labels."""

from foveate.tuning.constraints import Constraints
from foveate.tuning.recovering import Recovered, recover
from foveate.tuning.searching import Found, search

__all__ = ["Constraints", "Found", "Recovered", "recover", "search"]
