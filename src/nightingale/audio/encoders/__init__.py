"""Samples to bytes: streaming encoders for responses, and recordings written to files."""

from nightingale.audio.encoders.recording import save

__all__ = ["save"]
