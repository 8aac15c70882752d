"""Distill-MOS: the perceived quality of speech on a scale of 1 to 5, by Microsoft's distilled network.

It rates differences that DNSMOS does not, such as those between two vocoders. It is a judge only: it is never
a training loss and never selects a seed, since scores that were optimized measure nothing.
"""

from __future__ import annotations

from pathlib import Path

from nightingale_lab.bench.judges.mel import Array

WEIGHTS = "distill_mos_v7.pt"


class DistillMos:
    """The network, which rates crops of 7.68 s, at most one second apart, and averages them.

    It runs with as many threads as $OMP_NUM_THREADS says.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from distillmos import ConvTransformerSQAModel

        network = ConvTransformerSQAModel(load_weights=False)
        checkpoint = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
        network.load_state_dict(checkpoint["model"])
        self.network = network.eval()

    def score(self, samples: Array) -> float:
        """Return the mean opinion score of a clip at 16 kHz."""
        import torch

        with torch.inference_mode():
            return float(self.network(torch.from_numpy(samples)[None]))
