"""A fast BLAS for MLX: it must be loaded before a test imports MLX."""

from __future__ import annotations

from nightingale.backends.mlx.host_blas import load_fast_blas

load_fast_blas()
