"""Text in, text ids out: punctuation rules, tokenizers, languages and the English normalizer."""
