"""Deliberate breaks: each changes one line of the source in a copy, and a test must fail."""
