"""Samples to samples: reading, resampling, levelling, trimming and judging clips. numpy only, no torch."""
