"""Requests: their controls, text segments and streams."""
