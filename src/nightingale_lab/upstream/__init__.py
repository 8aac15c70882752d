"""Resemble AI's `chatterbox-tts`, the reference of our networks: its sizes, its environment, its classes.

Parity checks, benchmarks and peers use it. It is installed into an environment of its own, never into ours.
"""
