"""Nightingale's own WebSocket protocol for text that is still being written."""
