"""Render speech tokens to mel frames: whole, or as the tokens arrive.

Streaming, a frame is rendered once its token and the three the encoder looks ahead to are known. What may
differ from the whole rendering depends on how the flow was trained (docs/streaming.md):

- A *block-causal* flow never looks past the current block. Its stream is exact: it equals the whole rendered
  with the same blocks. It caches the keys and values of the utterance.
- A *bidirectional* flow attends to later frames when rendered whole, so its stream is an approximation. Each block is
  rendered with a few tokens before it, and attends to those, to itself, and to the voice's prompt, which was
  rendered once. So the cost of a block does not depend on the length of the utterance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nightingale.backends.shared.token_windows import FRAMES, TokenWindow, TokenWindows, prompt_block
from nightingale.decoding.philox import normal, stream_key
from nightingale.models.chatterbox.s3gen.flow import Flow, FlowState, render_block
from nightingale.voices.voice import Voice


@torch.inference_mode()
def render_mel(flow: Flow, ids: list[int], voice: Voice, *, seed: int) -> Tensor:
    """Return the mel (bands, frames) of `ids` in this voice, rendered whole."""
    weight = flow.encoder_proj.weight
    device, dtype = weight.device, weight.dtype
    tokens = torch.tensor([[*voice.flow_prompt_ids.tolist(), *ids]], dtype=torch.int64, device=device)
    noise = _noise(flow, stream_key(seed, "flow"), 0, FRAMES * tokens.shape[1])
    mel: Tensor = flow(
        tokens,
        prompt_mel=torch.tensor(voice.flow_prompt_mel.T[None]).to(device, dtype),
        speaker=torch.tensor(voice.flow_speaker[None]).to(device, dtype),
        noise=noise.to(device, dtype),
    )
    return mel[0]


@dataclass(frozen=True, slots=True)
class PromptState:
    """A voice's prompt after one flow: made once, shared by every stream in that voice."""

    voice: Voice
    tokens: int
    """The prompt's tokens in `past`; its last few wait for the tokens they look ahead to."""
    past: FlowState | None
    """None if the prompt is too short."""

    @property
    def nbytes(self) -> int:
        return self.past.nbytes if self.past else 0


@torch.inference_mode()
def prepare_prompt(flow: Flow, voice: Voice) -> PromptState:
    """Render the voice's prompt alone. Its noise is the voice's own, so every request finds the same past."""
    block = prompt_block(voice)
    if block is None:
        return PromptState(voice, 0, None)
    _, past = _render(flow, voice, block, stream_key(0, f"prompt/{voice.content_hash}"))
    return PromptState(voice, block.tokens, past)


class MelStream:
    """Render the mel of one utterance from speech ids as they arrive, one block with each push.

    Without `streaming`, ids are collected and rendered whole at the end, as `render_mel` does.
    """

    def __init__(
        self, flow: Flow, voice: Voice, *, seed: int, streaming: bool, prompt: PromptState | None = None
    ) -> None:
        self._flow, self._voice, self._seed, self._streaming = flow, voice, seed, streaming
        self._ended = False
        self._ids: list[int] = []
        if streaming:
            prompt = prompt or prepare_prompt(flow, voice)
            assert prompt.voice == voice, "the prompt is another voice's"
            self._past, self._noise_key = prompt.past, stream_key(seed, "flow")
            block_causal = flow.config.block_causal
            self._blocks = TokenWindows(voice, prompt_tokens=prompt.tokens, block_causal=block_causal)

    @torch.inference_mode()
    def push(self, ids: list[int], *, final: bool) -> Tensor:
        """Return the mel (bands, frames) of the ids but, unless `final`, the last three."""
        assert not self._ended, "the utterance has ended"
        self._ended = final
        if self._streaming:
            block = self._blocks.push(ids, final=final)
            return self._nothing() if block is None else self._advance(block, final)
        self._ids += ids
        if final and self._ids:
            return render_mel(self._flow, self._ids, self._voice, seed=self._seed)
        return self._nothing()

    def _advance(self, block: TokenWindow, final: bool) -> Tensor:
        store = self._flow.config.block_causal
        mel, past = _render(self._flow, self._voice, block, self._noise_key, self._past, store=store)
        self._past = None if final else past
        return mel[:, block.fresh]

    def _nothing(self) -> Tensor:
        return self._flow.encoder_proj.weight.new_empty(self._flow.config.mel_bands, 0)


def _noise(flow: Flow, key: int, first_frame: int, frames: int) -> Tensor:
    """Return the noise (1, mel, frames) of frames that are counted from the prompt's first."""
    return torch.from_numpy(normal(key, first_frame, frames, flow.config.mel_bands)).T[None]


def _render(
    flow: Flow,
    voice: Voice,
    block: TokenWindow,
    noise_key: int,
    past: FlowState | None = None,
    *,
    store: bool = True,
) -> tuple[Tensor, FlowState]:
    """Return the mel (bands, frames) of a block, and the state after it."""
    weight = flow.encoder_proj.weight
    device, dtype = weight.device, weight.dtype
    frames = block.frames
    mel, past = render_block(
        flow,
        torch.tensor([block.ids], device=device),
        lookahead=block.lookahead,
        prompt_mel=torch.tensor(voice.flow_prompt_mel[frames].T[None]).to(device, dtype),
        speaker=torch.tensor(voice.flow_speaker[None]).to(device, dtype),
        noise=_noise(flow, noise_key, frames.start, frames.stop - frames.start).to(device, dtype),
        past=past,
        advance=block.advance,
        store=store,
    )
    return mel[0], past
