"""The Wyoming protocol over TCP, as Home Assistant uses it."""
