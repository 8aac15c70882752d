"""Backends: what runs the networks on a device. See `base.py` for the contract."""
