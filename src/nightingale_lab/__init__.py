"""Training, benchmarks, judges and parity checks of Nightingale: a second distribution."""
