"""Stored results as one self-contained HTML file, and as Markdown tables for the documentation."""
