"""Wren's vocoder: mel frames to samples, at the rate of frames."""
