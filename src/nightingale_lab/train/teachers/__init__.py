"""Teachers: other people's voices that speak our training text. Used while training, never shipped."""
