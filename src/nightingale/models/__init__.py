"""Networks in PyTorch: they hold weights; state is passed in. Configurations and presets need no torch."""
