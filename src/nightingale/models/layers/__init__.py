"""Layers shared by the networks. Plain torch, no policy, no files."""
