"""f0 from mel frames."""

from __future__ import annotations

from torch import Tensor, nn

from nightingale.models.chatterbox.hift.config import CAUSAL_LOOKAHEAD_FRAMES, HiftConfig
from nightingale.models.layers.conv import same_conv

LAYERS = 5


class F0Predictor(nn.Module):
    """Five convolutions and a line: (batch, mel, frames) -> (batch, frames) in Hz, zero where unvoiced."""

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        widths = [config.mel_bands] + [config.f0_channels] * LAYERS
        layers: list[nn.Module] = []
        for i in range(LAYERS):
            # Each two-sided k3 layer sees one frame ahead: a causal voice keeps just its look-ahead's worth.
            causal = config.causal and i >= CAUSAL_LOOKAHEAD_FRAMES
            layers += [same_conv(widths[i], widths[i + 1], 3, causal=causal), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(config.f0_channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        hidden: Tensor = self.condnet(mel)
        return self.classifier(hidden.transpose(1, 2)).squeeze(-1).abs()
