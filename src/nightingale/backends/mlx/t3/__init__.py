"""T3 on MLX: prompt, layers, sampling and the decode loop."""
