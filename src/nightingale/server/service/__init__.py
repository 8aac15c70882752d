"""The part that all protocols share: the engine, voices, streams of speech and timestamps."""
