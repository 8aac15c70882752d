"""The three networks that turn a reference clip into a voice."""
