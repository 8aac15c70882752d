"""Audio in and out: reading, resampling, loudness, trimming, crossfades and encoders. Free of torch."""
