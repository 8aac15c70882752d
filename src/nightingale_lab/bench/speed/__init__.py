"""Latency and throughput of a target: our engine, an OpenAI-compatible server, or a peer."""
