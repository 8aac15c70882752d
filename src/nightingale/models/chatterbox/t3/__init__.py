"""T3: the language model that writes speech tokens."""
