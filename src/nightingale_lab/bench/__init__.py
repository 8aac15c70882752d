"""Instruments: how fast it is and how good it sounds, as values. Nothing here prints; `cli/` does."""
