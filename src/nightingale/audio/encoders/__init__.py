"""Samples to bytes: streaming encoders for responses, and recordings written to files."""
