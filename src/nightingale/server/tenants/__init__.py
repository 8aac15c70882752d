"""Tenants of a server: their keys, the voices that they may use, their limits, and what they have used."""
