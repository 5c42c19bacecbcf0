"""Pictures of what a model keeps. ``foveate show`` finds each one by name.

A module in this package registers a picture with one function::

    @picture("tokens")
    def tokens(model, images, *, name="model", blocks=None):
        \"\"\"Which patches each token holds, block by block.\"\"\"

``model`` may be reduced or not, ``images`` are paths, ``name`` is the title above the picture. All other keyword
arguments are the picture's own: the command line passes an option to the pictures that take it. The listing shows the
first line of the docstring.
"""

from collections.abc import Callable

from PIL import Image

from foveate.registries import Registry

Picture = Callable[..., Image.Image]

picture: Registry[Picture] = Registry("picture", __name__)
all_pictures = picture.all
