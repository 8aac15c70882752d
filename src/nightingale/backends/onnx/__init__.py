"""T3 on a CPU with weights of eight bits.

A step is bound by reading the weights, so a quarter of the bytes is a quarter of the time.

The whole step (layers, attention over the cache in place, head) is one graph of ONNX Runtime, an optional
package. `able.refusal` says whether it pays here; where it does not, the engine's plain runner does the work.
"""
