"""The vocoder on the GPU: HiFT in CUDA graphs of a few sizes."""
