"""The command line's grammar, apart from the package so that help and typing errors answer at once.

Nothing here imports torch, timm or foveate. Each command declares its options; ``foveate.cli`` does the work and is
imported once the words make sense.
"""
