"""HiFT's convolutions on the GPU, in Triton kernels."""
