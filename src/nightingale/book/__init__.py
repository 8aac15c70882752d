"""Audiobooks: readers of book files, a cache of spoken sentences, and audio files with chapters."""
