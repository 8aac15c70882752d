"""Kernels of the CPU backend, emitted as LLVM IR by Python (docs/internals/kernels.md)."""
