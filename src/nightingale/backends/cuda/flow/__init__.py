"""The flow on the GPU: blocks of a stream in CUDA graphs, and Triton kernels of its estimator."""
