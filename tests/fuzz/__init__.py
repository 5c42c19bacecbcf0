"""Bad input of every kind, drawn by a seed: ``python -m tests.fuzz --cases 2000 --seed 0``."""
