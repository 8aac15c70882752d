"""Benchmarks of a GPU. They need torch, numpy and safetensors only."""
