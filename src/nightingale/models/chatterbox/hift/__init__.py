"""HiFT: a neural source-filter vocoder with an inverse STFT, from mel frames to samples."""
