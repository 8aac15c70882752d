"""Judges of speech that need other people's networks. They run in an environment of their own.

`install.py` builds the environment, `worker.py` is the program that runs inside it, `client.py` talks to it.
"""
