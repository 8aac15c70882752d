"""Exports for phones: networks with fixed shapes (`static_*.py`), for ExecuTorch and for Core ML.

Both formats have the same loop (`phone_model.py`) and are compared with the engine in the same way
(`phone_check.py`). docs/export.md shows how an app uses them.
"""
