"""T3 on the GPU: the decode loop in CUDA graphs, batched sampling, and Triton kernels."""
