"""HiFT: mel frames to samples, a neural source-filter vocoder with an inverse STFT head."""
