"""Layers that the networks share."""
