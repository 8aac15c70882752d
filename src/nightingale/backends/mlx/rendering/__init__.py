"""The flow and the vocoder on MLX."""
