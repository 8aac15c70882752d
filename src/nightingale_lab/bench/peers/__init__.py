"""Other speech engines, measured on the same texts in the same run; each in an environment of its own."""
