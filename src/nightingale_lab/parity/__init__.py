"""Compare our networks with upstream's, stage by stage: `python -m nightingale_lab.parity`."""
