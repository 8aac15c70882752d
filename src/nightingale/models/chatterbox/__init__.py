"""The Chatterbox family: T3 (text ids -> speech ids), S3Gen (speech ids -> mel), HiFT (mel -> samples)."""
