"""The report of a comparison as one self-contained HTML file: no network, no other file.

``collect_gallery`` traces images through reduced models; ``render`` writes the page.
"""

from foveate.report.page.gallery import Gallery, collect_gallery
from foveate.report.page.render import render

__all__ = ["Gallery", "collect_gallery", "render"]
