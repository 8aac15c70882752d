"""The networks that make a voice from a reference clip."""
