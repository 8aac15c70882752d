"""Tiny networks with weights by formula, and what upstream's classes of the same sizes gave for them."""
