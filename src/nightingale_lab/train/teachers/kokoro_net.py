"""Kokoro-82M in plain PyTorch, batched: phoneme ids and a style vector in, 24 kHz speech out.

Written from the graph of `kokoro-v1.0.int8.onnx`, whose CPU runtime makes one second of speech per
second and core. The same weights here, dequantized once, speak hundreds of seconds per second on a
GPU. Parameter names are the graph's (see kokoro_weights.py), shortened.

    phonemes -> ALBERT -> duration encoder -> frames per phoneme -> pitch, energy  (style[:, 128:])
    phonemes -> text encoder -> stretched to frames -> decoder -> generator        (style[:, :128])

Rates: 40 frames/s for phoneme alignment, 80 for pitch and energy, 800 and 4800 inside the generator,
whose last layer is a spectrum of 11 bins every 5 samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale_lab.train.teachers.articulation import clear_boundaries
from nightingale_lab.train.teachers.intonation import Contours, apply_contours, duration_factors, has_edits
from nightingale_lab.train.teachers.kokoro_parts import (
    STYLE_DIM,
    Kernels,
    SnakeBlock,
    Span,
    StyleBlock,
    bidirectional,
    conv,
    run_packed,
)
from nightingale_lab.train.teachers.kokoro_source import (
    N_FFT,
    SAMPLES_PER_PITCH_FRAME,
    overlap_add,
    polar_spectrum,
    pulse_source,
)

PHONEMES = 178  # of the vocabulary
MAX_PHONEMES = 510  # ALBERT has 512 positions; two go to the padding ids at the ends


class AlignedSpeech(NamedTuple):
    """A batch of speech with its phonemes and pitch."""

    samples: Tensor
    """(B, N) float32 on the device."""
    counts: Tensor
    """(B,): number of samples of each row, on the CPU."""
    ids: Tensor
    """(B, T): phoneme ids, padded at both ends."""
    ends: Tensor
    """(B, T): the 40 Hz frame at which each phoneme ends."""
    f0_hz: Tensor
    """(B, L) pitch at 80 Hz."""


class Albert(nn.Module):
    """Twelve passes through one transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(PHONEMES, 128)
        self.position = nn.Embedding(512, 128)
        self.token_type = nn.Embedding(2, 128)
        self.norm = nn.LayerNorm(128, eps=1e-12)
        self.hidden_in = nn.Linear(128, 768)
        self.query, self.key, self.value, self.dense = (nn.Linear(768, 768) for _ in range(4))
        self.attention_norm = nn.LayerNorm(768, eps=1e-12)
        self.ffn, self.ffn_output = nn.Linear(768, 2048), nn.Linear(2048, 768)
        self.output_norm = nn.LayerNorm(768, eps=1e-12)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids (B, T), mask (B, T) bool -> (B, T, 768)."""
        place = torch.arange(ids.shape[1], device=ids.device)
        x: Tensor = self.norm(self.word(ids) + self.token_type.weight[0] + self.position(place))
        x = self.hidden_in(x)
        for _ in range(12):
            parts = (self.query, self.key, self.value)
            q, k, v = (part(x).unflatten(-1, (12, 64)).transpose(1, 2) for part in parts)
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
            x = self.attention_norm(x + self.dense(seen.transpose(1, 2).flatten(2)))
            x = self.output_norm(x + self.ffn_output(F.gelu(self.ffn(x), approximate="tanh")))
        return x


class TextEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(PHONEMES, 512)
        self.convs = nn.ModuleList(nn.Conv1d(512, 512, 5, padding=2) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(3))
        self.lstm = bidirectional(512)

    def forward(self, ids: Tensor, mask: Tensor, lengths_cpu: Tensor) -> Tensor:
        """-> (B, T, 512)."""
        x = self.embedding(ids) * mask[..., None]
        for layer, norm in zip(self.convs, self.norms, strict=True):
            x = norm(layer(x.transpose(1, 2)).transpose(1, 2))
            x = F.leaky_relu(x, 0.2) * mask[..., None]
        return run_packed(self.lstm, x, lengths_cpu)


class Prosody(nn.Module):
    """Durations from phonemes; pitch and energy from stretched phonemes."""

    def __init__(self) -> None:
        super().__init__()
        self.lstms = nn.ModuleList(bidirectional(512 + STYLE_DIM) for _ in range(3))
        self.affines = nn.ModuleList(nn.Linear(STYLE_DIM, 1024) for _ in range(3))
        self.lstm = bidirectional(512 + STYLE_DIM)
        self.duration_proj = nn.Linear(512, 50)
        self.shared = bidirectional(512 + STYLE_DIM)
        self.F0, self.N = self._curve(), self._curve()
        self.F0_proj, self.N_proj = conv(256, 1, 1), conv(256, 1, 1)

    @staticmethod
    def _curve() -> nn.ModuleList:
        blocks = [StyleBlock(512, 512), StyleBlock(512, 256, upsample=True), StyleBlock(256, 256)]
        return nn.ModuleList(blocks)

    def encode(self, x: Tensor, style: Tensor, lengths_cpu: Tensor) -> Tensor:
        """(B, T, 512) -> (B, T, 640), the style appended to every phoneme."""
        spread = style[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat([x, spread], dim=-1)
        for lstm, affine in zip(self.lstms, self.affines, strict=True):
            gamma, beta = affine(style)[:, None].chunk(2, dim=-1)
            x = F.layer_norm(run_packed(lstm, x, lengths_cpu), (512,)) * (1.0 + gamma) + beta
            x = torch.cat([x, spread], dim=-1)
        return x

    def durations(self, encoded: Tensor, lengths_cpu: Tensor, speed: Tensor) -> Tensor:
        """Frames (at 40 per second) of every phoneme, at least one: (B, T) int64."""
        frames = torch.sigmoid(self.duration_proj(run_packed(self.lstm, encoded, lengths_cpu))).sum(-1)
        return torch.round(frames / speed[:, None]).clamp(min=1).long()

    def pitch_and_energy(
        self, frames: Tensor, style: Tensor, span: Span, lengths_cpu: Tensor, kernels: Kernels
    ) -> tuple[Tensor, Tensor, Span]:
        """frames (B, F, 640) -> two (B, 1, 1, 2F), masked, and their span."""
        shared = run_packed(self.shared, frames, lengths_cpu).transpose(1, 2)[:, :, None]
        curves = []
        for blocks, proj in ((self.F0, self.F0_proj), (self.N, self.N_proj)):
            x, at = shared, span
            for block in blocks:
                x, at = block(x, style, at, kernels)
            curves.append(proj(x) * at.mask)
        return curves[0], curves[1], at


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source_mix = nn.Linear(9, 1)
        into_coarse = nn.Conv2d(22, 256, (1, 12), (1, 6), padding=(0, 3))
        self.noise_convs = nn.ModuleList([into_coarse, nn.Conv2d(22, 128, 1)])
        self.noise_res = nn.ModuleList([SnakeBlock(256, 7), SnakeBlock(128, 11)])
        self.ups = nn.ModuleList(
            [
                nn.ConvTranspose2d(512, 256, (1, 20), (1, 10), padding=(0, 5)),
                nn.ConvTranspose2d(256, 128, (1, 12), (1, 6), padding=(0, 3)),
            ]
        )
        self.resblocks = nn.ModuleList(SnakeBlock(c, k) for c in (256, 128) for k in (3, 7, 11))
        self.conv_post = conv(128, 22, 7)
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        f0: Tensor,
        span: Span,
        kernels: Kernels,
        noise: torch.Generator | None,
    ) -> Tensor:
        """x (B, 512, 1, L) masked, f0 (B, L) float32 -> (B, 300 L) float32."""
        dtype = x.dtype
        signal = pulse_source(f0, self.source_mix.weight.float(), self.source_mix.bias.float(), noise)
        harmonic = polar_spectrum(signal, span.lengths * SAMPLES_PER_PITCH_FRAME, self.window)
        coarse, fine = span.stretched(10), span.stretched(60, 1)
        harmonic = (harmonic * fine.mask).to(dtype)
        if x.is_cuda:
            harmonic = harmonic.contiguous(memory_format=torch.channels_last)
        for stage, at in enumerate((coarse, fine)):
            source = self.noise_res[stage](self.noise_convs[stage](harmonic), style, at, kernels)
            x = self.ups[stage](F.leaky_relu(x, 0.1))
            if stage == 1:
                x = torch.cat([x[..., 1:2], x], dim=-1)  # reflect by one frame on the left
            x = x + source
            branches = self.resblocks[3 * stage : 3 * stage + 3]
            x = sum(block(x, style, at, kernels) for block in branches) / 3.0 * at.mask
        polar = self.conv_post(F.leaky_relu(x.float(), 0.01))
        return overlap_add(polar, fine.mask.float(), self.window)


class KokoroDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.F0_conv = nn.Conv2d(1, 1, (1, 3), (1, 2), padding=(0, 1))
        self.N_conv = nn.Conv2d(1, 1, (1, 3), (1, 2), padding=(0, 1))
        self.asr_res = conv(512, 64, 1)
        self.encode = StyleBlock(514, 1024)
        blocks = [StyleBlock(1090, 1024) for _ in range(3)]
        self.decode = nn.ModuleList([*blocks, StyleBlock(1090, 512, upsample=True)])
        self.generator = Generator()

    def forward(
        self,
        text: Tensor,
        f0: Tensor,
        energy: Tensor,
        style: Tensor,
        span: Span,
        kernels: Kernels,
        noise: torch.Generator | None,
    ) -> Tensor:
        """text (B, 512, 1, F), f0 and energy (B, 1, 1, 2F), all masked -> samples (B, 600 F)."""
        dtype = text.dtype
        curves = torch.cat([self.F0_conv(f0), self.N_conv(energy)], dim=1).to(dtype) * span.mask
        aside = self.asr_res(text) * span.mask
        x, at = self.encode(torch.cat([text, curves], dim=1), style, span, kernels)
        for block in self.decode:
            x, at = block(torch.cat([x, aside, curves], dim=1), style, at, kernels)
        samples: Tensor = self.generator(x * at.mask, style, f0[:, 0, 0].float(), at, kernels, noise)
        return samples


class Kokoro(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = Albert()
        self.bert_encoder = nn.Linear(768, 512)
        self.text_encoder = TextEncoder()
        self.predictor = Prosody()
        self.decoder = KokoroDecoder()

    def half_decoder(self) -> None:
        """KokoroDecoder in float16: as many mantissa bits as TF32 at half the traffic. Ends stay float32."""
        self.decoder.half()
        for keep in (self.decoder.F0_conv, self.decoder.N_conv):
            keep.float()
        self.decoder.generator.conv_post.float()
        self.decoder.generator.window = self.decoder.generator.window.float()

    @torch.inference_mode()
    def aligned(
        self,
        ids: Tensor,
        lengths_cpu: Tensor,
        style: Tensor,
        speed: Tensor,
        kernels: Kernels,
        noise: torch.Generator | None,
        frame_multiple: int,
        contours: Sequence[Contours],
    ) -> AlignedSpeech:
        """Padded ids (B, T) with their two end pads, style (B, 256), speed (B,) -> speech and its alignment.

        Samples (B, N) float32 on the device; counts (B,) int64 on the CPU. One synchronization, for
        the durations. Frames are padded to a multiple of `frame_multiple`, so that shapes repeat:
        cuDNN plans each new shape of each convolution anew, at milliseconds of host time.
        contours: the intonation of each row's sentences (intonation.py).
        """
        device, dtype = ids.device, self.decoder.asr_res.weight.dtype
        voice, manner = style[:, :STYLE_DIM], style[:, STYLE_DIM:]
        mask = torch.arange(ids.shape[1], device=device) < lengths_cpu.to(device)[:, None]
        encoded = self.bert_encoder(self.bert(ids, mask))
        encoded = self.predictor.encode(encoded, manner, lengths_cpu)
        text = self.text_encoder(ids, mask, lengths_cpu)

        durations = clear_boundaries(ids, self.predictor.durations(encoded, lengths_cpu, speed)) * mask
        edited = has_edits(contours)
        if edited:
            durations = (durations * duration_factors(ids, contours)).round().long()
        ends = durations.cumsum(1)
        frame_counts = ends[:, -1].cpu()
        size = -(-int(frame_counts.max()) // frame_multiple) * frame_multiple
        ticks = torch.arange(size, device=device).expand(len(ids), -1).contiguous()
        phoneme = torch.searchsorted(ends, ticks, right=True).clamp(max=ids.shape[1] - 1)[..., None]
        span = Span.of(frame_counts.to(device), size, torch.float32)
        stretched = encoded.gather(1, phoneme.expand(-1, -1, encoded.shape[-1]))
        f0, energy, _ = self.predictor.pitch_and_energy(stretched, manner, span, frame_counts, kernels)
        if edited:
            curves = apply_contours(ids, ends, f0[:, 0, 0], energy[:, 0, 0], contours)
            f0, energy = (curve[:, None, None] for curve in curves)

        text = text.gather(1, phoneme.expand(-1, -1, 512)).transpose(1, 2)[:, :, None] * span.mask
        if text.is_cuda:
            text = text.contiguous(memory_format=torch.channels_last)
        span = Span.of(span.lengths, size, dtype)
        samples = self.decoder(text.to(dtype), f0, energy, voice.to(dtype), span, kernels, noise)
        counts = frame_counts * 2 * SAMPLES_PER_PITCH_FRAME
        return AlignedSpeech(samples=samples, counts=counts, ids=ids, ends=ends, f0_hz=f0[:, 0, 0])
