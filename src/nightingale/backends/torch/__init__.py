"""The reference backend: PyTorch, any device."""
