"""Sampling and decode-loop state, shared by the engine and the backends. numpy only."""
