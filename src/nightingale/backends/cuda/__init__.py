"""Speed as a guest: the networks' arithmetic, arranged for a GPU, and swapped in from outside.

Every part has a plain twin (nn/, models/, engine/), says what it did, and refuses where it did nothing.
"""
