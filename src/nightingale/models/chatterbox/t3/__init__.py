"""T3: the language model that generates speech tokens from text."""
