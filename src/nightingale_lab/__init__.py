"""Training, benchmarks, judges and parity checks of Nightingale: a second distribution, `nightingale-lab`."""

__version__ = "0.2.0"
