"""What all protocols share: the loaded engine, voices, streams of speech and timestamps."""
