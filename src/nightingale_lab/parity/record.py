"""Record the outputs of upstream's classes at tiny sizes, for the default tests.

    python -m nightingale_lab.parity record        writes tests/parity/goldens.safetensors

Sizes, inputs and weights come from tests/parity/tiny.py, which the tests use too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from chatterbox.models.s3gen import hifigan
from chatterbox.models.s3gen.decoder import ConditionalDecoder
from chatterbox.models.s3gen.f0_predictor import ConvRNNF0Predictor
from chatterbox.models.s3gen.flow import CausalMaskedDiffWithXvec
from chatterbox.models.s3gen.flow_matching import CausalConditionalCFM
from chatterbox.models.s3gen.transformer.upsample_encoder import (
    PreLookaheadLayer,
    Upsample1D,
    UpsampleConformerEncoder,
)
from chatterbox.models.t3 import T3
from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
from chatterbox.models.t3.modules import cond_enc
from chatterbox.models.t3.modules.perceiver import Perceiver
from chatterbox.models.t3.modules.t3_config import T3Config
from safetensors.torch import save_file
from torch import Tensor

from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig
from nightingale_lab.parity.hooks import outputs_of
from nightingale_lab.parity.stages import sampling_stage, t3_stage
from nightingale_lab.upstream.networks import apply_head_changes, quiet

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
from parity import tiny


def record_llama() -> dict[str, Tensor]:
    size, rows = tiny.TINY_LLAMA.backbone, tiny.TINY_LLAMA.learned_positions
    assert isinstance(size, LlamaConfig)
    assert rows is not None
    LLAMA_CONFIGS["tiny_llama"] = {
        **LLAMA_CONFIGS["Llama_520M"],
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": size.width // size.heads,
        "intermediate_size": size.ffn,
    }
    config = T3Config(text_tokens_dict_size=tiny.TINY_LLAMA.text_vocab)
    config.llama_config_name = "tiny_llama"
    config.speech_tokens_dict_size = tiny.TINY_LLAMA.speech_vocab
    config.max_text_tokens, config.max_speech_tokens = rows[0] - 2, rows[1] - 4
    small = partial(Perceiver, pre_attention_query_size=size.width, embedding_dim=size.width)
    with mock.patch.object(cond_enc, "Perceiver", small):
        net = tiny.fill(T3(config))
    return record_t3("llama", net)


def record_gpt2() -> dict[str, Tensor]:
    size = tiny.TINY_GPT2.backbone
    assert isinstance(size, Gpt2Config)
    LLAMA_CONFIGS["tiny_gpt2"] = {
        **LLAMA_CONFIGS["GPT2_medium"],
        "n_embd": size.width,
        "hidden_size": size.width,
        "n_layer": size.layers,
        "n_head": size.heads,
        "n_positions": size.positions,
        "n_ctx": size.positions,
        "vocab_size": tiny.TINY_GPT2.text_vocab,
    }
    config = T3Config(text_tokens_dict_size=tiny.TINY_GPT2.text_vocab)
    config.llama_config_name = "tiny_gpt2"
    config.speech_tokens_dict_size = tiny.TINY_GPT2.speech_vocab
    config.input_pos_emb = None
    config.use_perceiver_resampler = config.emotion_adv = False
    net = tiny.fill(T3(config))
    return record_t3("gpt2", net)


def record_t3(kind: str, net: T3) -> dict[str, Tensor]:
    run = t3_stage.run_theirs(net, tiny.t3_case(kind), guided=kind == "llama")
    assert len(set(run.ids.tolist())) > tiny.GREEDY_TOKENS // 2, f"{kind} repeats itself: {run.ids}"
    return {
        f"{kind}.conditioning": run.conditioning,
        f"{kind}.prefill_scores": run.logits[0, :, tiny.SEEN_LOGITS].contiguous(),
        f"{kind}.greedy_ids": run.ids,
    }


def record_sampler(model: str) -> dict[str, Tensor]:
    logits, ids = tiny.sampler_inputs(model)
    return {
        f"sampler.{model}.{name}": sampling_stage.run_theirs(settings, logits, ids)[:, tiny.SAMPLED_LOGITS]
        for name, settings in sampling_stage.cases(model).items()
    }


def record_flow(config: FlowConfig, name: str) -> dict[str, Tensor]:
    width = config.encoder_width
    encoder = UpsampleConformerEncoder(
        input_size=width,
        output_size=width,
        attention_heads=config.encoder_heads,
        linear_units=config.encoder_ffn,
        num_blocks=config.encoder_blocks,
    )
    encoder.pre_lookahead_layer = PreLookaheadLayer(channels=width, pre_lookahead_len=3)
    encoder.up_layer = Upsample1D(channels=width, out_channels=width, stride=2)
    encoder.up_encoders = encoder.up_encoders[: config.encoder_up_blocks]
    estimator = ConditionalDecoder(
        in_channels=320,
        out_channels=80,
        causal=True,
        channels=[config.estimator_width],
        dropout=0.0,
        attention_head_dim=64,
        n_blocks=config.estimator_stage_blocks,
        num_mid_blocks=config.estimator_mid_stages,
        num_heads=config.estimator_heads,
        act_fn="gelu",
        meanflow=config.meanflow,
    )
    decoder = CausalConditionalCFM(spk_emb_dim=80, estimator=estimator)
    net = tiny.fill(CausalMaskedDiffWithXvec(input_size=width, encoder=encoder, decoder=decoder))
    tokens = tiny.FLOW_PROMPT_TOKENS + tiny.FLOW_TOKENS
    noise = tiny.gaussian((1, 80, 2 * tokens), 3)
    with quiet(), _drawing({tuple(noise.shape): noise}), outputs_of(net.encoder_proj) as mu:
        mel, _ = net.inference(
            token=tiny.ids(tokens, 4)[:, tiny.FLOW_PROMPT_TOKENS :],
            token_len=torch.tensor([tiny.FLOW_TOKENS]),
            prompt_token=tiny.ids(tokens, 4)[:, : tiny.FLOW_PROMPT_TOKENS],
            prompt_token_len=torch.tensor([tiny.FLOW_PROMPT_TOKENS]),
            prompt_feat=tiny.scatter((1, 2 * tiny.FLOW_PROMPT_TOKENS, 80), 5),
            prompt_feat_len=None,
            embedding=tiny.scatter((1, 192), 6),
            finalize=True,
            n_timesteps=2 if config.meanflow else 10,
            meanflow=config.meanflow,
        )
    return {f"{name}.mu": mu[0].transpose(1, 2).contiguous(), f"{name}.mel": mel.contiguous()}


def record_hift() -> dict[str, Tensor]:
    config = tiny.TINY_HIFT
    dilations = [[1, 3, 5]] * 3
    net = tiny.fill(
        hifigan.HiFTGenerator(
            base_channels=config.base_channels,
            sampling_rate=24_000,
            upsample_rates=[8, 5, 3],
            upsample_kernel_sizes=[16, 11, 7],
            resblock_kernel_sizes=list(config.resblock_kernels),
            resblock_dilation_sizes=dilations[: len(config.resblock_kernels)],
            source_resblock_kernel_sizes=list(config.source_kernels),
            source_resblock_dilation_sizes=dilations,
            f0_predictor=ConvRNNF0Predictor(cond_channels=config.f0_channels),
        )
    )
    mel = tiny.gaussian((1, 80, tiny.FRAMES), 8)
    noise = tiny.gaussian((1, 9, 480 * tiny.FRAMES), 9)
    phase = 3 * tiny.scatter((1, 9, 1), 10)
    uniform = mock.Mock(return_value=mock.Mock(sample=lambda **_shape: phase.clone()))
    with mock.patch.object(hifigan, "Uniform", uniform), _drawing({tuple(noise.shape): noise}):
        wav, source = net.inference(speech_feat=mel)
    f0_hz = net.f0_predictor(mel)
    assert (f0_hz > 10).any(), f0_hz
    assert (f0_hz < 10).any(), f0_hz
    assert 0.05 < wav.abs().max() < 0.99, wav.abs().max()
    return {"hift.f0_hz": f0_hz, "hift.source": source.contiguous(), "hift.samples": wav}


@contextmanager
def _drawing(noises: dict[tuple[int, ...], Tensor]) -> Iterator[None]:
    """Make `torch.randn_like` return these tensors for their shapes."""
    draw = torch.randn_like

    def given(like: Tensor, **keywords: Any) -> Tensor:
        found = noises.get(tuple(like.shape))
        return draw(like, **keywords) if found is None else found.clone()

    with mock.patch.object(torch, "randn_like", given):
        yield


def main() -> None:
    apply_head_changes()
    with torch.inference_mode():
        recorded = {
            **record_llama(),
            **record_gpt2(),
            **record_flow(tiny.TINY_FLOW, "flow"),
            **record_flow(tiny.TINY_MEANFLOW, "meanflow"),
            **record_hift(),
            **record_sampler("english"),
            **record_sampler("turbo"),
        }
    save_file({name: t.clone() for name, t in recorded.items()}, tiny.GOLDENS)
    for name, t in recorded.items():
        sys.stdout.write(f"{name:32s} {tuple(t.shape)!s:16s} {t.dtype}\n")
    sys.stdout.write(f"{tiny.GOLDENS.stat().st_size} bytes in {tiny.GOLDENS}\n")


if __name__ == "__main__":
    main()
