"""The Chatterbox models: T3 (text to speech tokens), S3Gen (tokens to mel), HiFT (mel to samples)."""
