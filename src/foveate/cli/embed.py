"""The work of ``foveate embed``, which is that of ``foveate predict`` with another output."""

from foveate.cli.predict import run

__all__ = ["run"]
