"""Rendering on the engine side: block schedule, stream assembly and time stretch."""
