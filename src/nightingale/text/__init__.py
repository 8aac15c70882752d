"""Text to text ids: normalization, segmentation, tokenizers and languages."""
