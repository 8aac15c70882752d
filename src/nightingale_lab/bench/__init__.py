"""Measurements of speed and quality. Nothing here prints below the `main` of a module."""
