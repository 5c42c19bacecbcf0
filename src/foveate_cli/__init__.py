"""The command line parser, in a package of its own so that help and usage errors appear at once.

Nothing here imports torch, timm or foveate. Each command declares its options; ``foveate.cli`` does the work and is
imported only after the arguments have been parsed.
"""
