"""T3 on a CPU by ONNX Runtime, an optional package: in int8, or small models in float32.

A whole step (layers, attention over the KV cache in place, head) is one graph. `capabilities.py` decides
whether it can run here and pays off.
"""
