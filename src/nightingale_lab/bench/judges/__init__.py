"""Judges of speech: pretrained recognizers and quality models, in an environment of their own.

`install.py` makes the environment, `worker.py` runs inside it, `client.py` starts the workers.
"""
