"""The two kinds of training steps of the flow, as tensor operations; flow.py explains the phases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.s3gen.token_encoder import attention_mask
from nightingale.models.frame_vocoder.config import VOICED_ABOVE_HZ
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.models.layers.mel import FlowMel
from nightingale_lab.train.code_init import init_from_digits
from nightingale_lab.train.corpus import Corpus, Windows, audio_of
from nightingale_lab.train.loop import Ema, GraphedStep, Optimizer
from nightingale_lab.train.measured_pitch import mean_log_pitch
from nightingale_lab.train.mel_content import FEATURE_WEIGHT, MelContent, phoneme_weights
from nightingale_lab.train.mel_discriminator import MelDiscriminator, balanced
from nightingale_lab.train.mel_speaker import NOISE, RATE, MelSpeakerEncoder, bands_below, distance
from nightingale_lab.train.resample import To16k

WINDOW_TOKENS = 128
BLOCK_TOKENS = (6, 8, 12, 16, 25, 50, 128, 128)
"""Streaming block sizes to sample from; the last two are the whole window."""
FIRST_WEIGHT = 0.5
"""Loss weight of the first step, relative to the second."""
VALIDATION_STEPS = 8
"""Euler steps of the validation before refining."""
PRIOR_WEIGHT = 0.2
"""Loss weight of the token encoder's own prediction of the mel."""
CHANGE_WEIGHT = 0.5
"""Loss weight of the differences between neighbouring frames."""
VALIDATION_WINDOWS = 64
PROMPT_SHARE = 0.6
"""The longest prompt, as a share of the window: 3 seconds."""
SWAPPED = 4
"""One row in so many is rendered again with the speaker of another row."""
CONVERTED_SHARE = 1 / 3
"""Share of the rows whose tokens are those of their clip in another voice, if there are any."""
MEL_FLOOR = -11.5
"""The mel of a band without sound."""


def nearby(speaker: Tensor) -> Tensor:
    """Return unit vectors near those given, as vectors of other clips, and of our own encoder, are."""
    return F.normalize(speaker + 0.02 * torch.randn_like(speaker), dim=1)


LOSSES = ("first", "second", "speaker", "pitch", "content", "judge", "adversarial", "discriminator")
"""Names of the losses that are logged."""


class FlowTraining:
    """Weights, optimizer, and the two kinds of steps."""

    def __init__(
        self,
        corpus: Corpus,
        tokens: Tensor,
        config: FlowConfig,
        *,
        teacher: VoiceEncoder,
        device: torch.device,
        batch: int,
        eager: bool,
        adversarial: bool = False,
        pitch: FrameVocoder | None = None,
        converted: Tensor | None = None,
    ) -> None:
        """Build the networks and their optimizers.

        teacher: of the speaker vectors; adversarial: with a discriminator of mels; pitch: a vocoder's predictor;
        converted: other tokens of the same clips.
        """
        self.config, self.device, self.batch = config, device, batch
        self.net = Flow(config).to(device)
        init_from_digits(self.net.input_embedding.weight)
        with torch.no_grad():
            for name, weight in self.net.decoder["estimator"].named_parameters():
                if name.startswith("final_proj"):
                    weight.zero_()  # the initial velocity is zero
        self.refining = False
        self.few = max(1, batch // SWAPPED)
        """Rows whose speaker is judged, in each step."""
        out = corpus.held_out
        self.windows = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=~out)
        self.tokens, self.phones = tokens.to(device), torch.from_numpy(corpus.phones).to(device)
        self.converted = None if converted is None else converted.to(device)
        self.audio = torch.from_numpy(corpus.bank.audio).to(device)
        self.flow_mel = FlowMel().to(device)
        self.sizes = torch.tensor(BLOCK_TOKENS, device=device)
        self.optimizer = Optimizer(self.net.parameters(), betas=(0.9, 0.98))
        self.ema = Ema(self.net.parameters(), decay=0.999)
        self.losses = torch.zeros(len(LOSSES), device=device)
        self.discriminator: MelDiscriminator | None = None
        self.adversarial = torch.zeros((), device=device)
        """The gradient of the adversarial loss as a share of that of the distance to the recorded mel."""
        if adversarial:
            dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
            self.discriminator = MelDiscriminator(dtype).to(device)
            self.discriminator_optimizer = Optimizer(self.discriminator.parameters())
        self.judge = MelSpeakerEncoder(teacher.to(device)).to(device)
        self.voice_mel, self.to16k = teacher.mel, To16k().to(device)
        self.below_limit = bands_below().to(device)[None, :, None]
        self.content = MelContent(self.below_limit).to(device)
        judges = [*self.judge.parameters(), *self.content.parameters()]
        self.judge_optimizer = Optimizer(judges, betas=(0.9, 0.98))
        self.pitch = None if pitch is None else pitch.to(device).requires_grad_(False)
        self.consistency = torch.zeros((), device=device)
        """Loss weight of the speaker and the pitch of swapped rows, and of the phonemes of all rows."""
        self.validation_batch: dict[str, Tensor] | None = None
        if out.any():
            with torch.no_grad():
                held_out = Windows(corpus, device, tokens=WINDOW_TOKENS, chosen=out)
                self.validation_batch = self._batch(held_out, min(VALIDATION_WINDOWS, batch))
                self.validation_batch["noise"] = torch.randn_like(self.validation_batch["mel"])
        self.match = GraphedStep(self._match, eager=eager)
        self.refine = GraphedStep(self._refine, eager=eager)

    def _batch(self, windows: Windows, batch: int) -> dict[str, Tensor]:
        """Return a batch: ids, valid, blocks, normalized mel, the mel to give as a prompt, cond, speaker, and share.

        share: of each band and frame in the loss.
        """
        clip, start, real = windows.sample(batch)
        audio = audio_of(windows, self.audio, start, real)
        mel = (self.flow_mel(audio) - self.config.mel_mean) / self.config.mel_std
        place = torch.arange(WINDOW_TOKENS, device=self.device)
        valid = place[None] < real[:, None]
        size = self.sizes[torch.randint(len(BLOCK_TOKENS), (batch, 1), device=self.device)]
        shift = (torch.rand(batch, 1, device=self.device) * size).long()
        blocks = (place[None] + shift) // size
        wanted = windows.speaker[clip].float()
        speaker = nearby(wanted)
        # In half of the rows the first part of the window is given, like the prompt of a voice.
        prompt_share = (torch.rand(batch, 1, device=self.device) * 2 - 1) * PROMPT_SHARE
        frames = torch.arange(2 * WINDOW_TOKENS, device=self.device)[None]
        prompt = frames < prompt_share.clamp(min=0) * 2 * real[:, None]
        frame_valid = valid.repeat_interleave(2, dim=1)
        # Losses leave out the upper bands of recordings that have none. Prompts without them must not make the
        # rest dull, so half of the other prompts lose theirs too.
        limited = windows.band_limited[clip]
        counted = torch.where(limited[:, None, None], self.below_limit, 1.0)
        dull = limited | (torch.rand(batch, device=self.device) < 0.5)
        floor = (MEL_FLOOR - self.config.mel_mean) / self.config.mel_std
        given = torch.where(dull[:, None, None] & (self.below_limit == 0), floor, mel)
        ids = windows.gather(self.tokens, start, real, per_token=1)
        if self.converted is not None:
            chosen = torch.rand(batch, 1, device=self.device) < CONVERTED_SHARE
            ids = torch.where(chosen, windows.gather(self.converted, start, real, per_token=1), ids)
        return {
            "ids": ids.long(),
            "phones": windows.gather(self.phones, start, real, per_token=2).long(),
            "valid": valid,
            "blocks": blocks,
            "mel": mel * frame_valid[:, None],
            "cond": given * prompt[:, None],
            "given": given * frame_valid[:, None],
            "share": (frame_valid / frame_valid.sum())[:, None] * counted,
            "speaker": speaker,
            "wanted": wanted,
            "audio": audio,
        }

    def _mask(self, b: dict[str, Tensor]) -> Tensor:
        valid, blocks = (b[name].repeat_interleave(2, 1) for name in ("valid", "blocks"))
        mask = attention_mask(valid, blocks, self.config.left_context)
        assert mask is not None
        return mask

    def _match(self) -> None:
        with torch.no_grad():
            b = self._batch(self.windows, self.batch)
            noise = torch.randn_like(b["mel"])
            t = torch.sigmoid(torch.randn(self.batch, device=self.device))
            t = torch.where(torch.rand_like(t) < 0.2, torch.rand_like(t), t)
            is_conditioned = (torch.rand(self.batch, 1, 1, device=self.device) > 0.1).float()
            along = t[:, None, None]
            x = (1 - along) * noise + along * b["mel"]
        with torch.autocast(self.device.type, torch.bfloat16):
            mu = self.net.encode(b["ids"], b["valid"], b["blocks"])
            predicted = self.net.decoder["estimator"](
                x,
                mu=mu * is_conditioned,
                speaker=self.net.speaker(b["speaker"]) * is_conditioned[:, :, 0],
                cond=b["cond"] * is_conditioned,
                t=t,
                r=t,
                mask=self._mask(b),
            )
        error = predicted.float() - (b["mel"] - noise)
        flow_loss = (error.square() * b["share"]).sum() / self.config.mel_bands
        prior_loss = ((mu.float() - b["mel"]).abs() * b["share"]).sum() / self.config.mel_bands
        self.optimizer.step(flow_loss + PRIOR_WEIGHT * prior_loss)
        self.ema.update()
        self._note(flow_loss, prior_loss)

    def start_refining(self) -> None:
        """Switch to training the two deterministic steps, starting from the averaged weights."""
        with torch.no_grad():
            torch._foreach_copy_([p.data for p in self.net.parameters()], self.ema.average)
        self.refining = True

    def _two_steps(self, b: dict[str, Tensor], cond: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the encoder's prediction, the first step's, and the mel after two steps from zeros."""
        zero, half, one = (torch.full((len(cond),), v, device=self.device) for v in (0.0, 0.5, 1.0))
        mu = self.net.encode(b["ids"], b["valid"], b["blocks"])
        speaker = self.net.speaker(b["speaker"])
        conditioning = {"mu": mu, "speaker": speaker, "cond": cond, "mask": self._mask(b)}
        estimator = self.net.decoder["estimator"]
        first = estimator(torch.zeros_like(cond), t=zero, r=half, **conditioning).float()
        half_way = 0.5 * first
        second = estimator(half_way, t=half, r=one, **conditioning).float()
        return mu.float(), first, half_way + 0.5 * second

    def _refine(self) -> None:
        with torch.no_grad():
            b = self._batch(self.windows, self.batch)
        with torch.autocast(self.device.type, torch.bfloat16):
            prior, first, mel = self._two_steps(b, b["cond"])
        # From zeros, the velocity of the straight line is the mel itself, so both steps have the same target.
        prior_loss, first_loss, loss = (
            ((predicted - b["mel"]).abs() * b["share"]).sum() / self.config.mel_bands
            for predicted in (prior, first, mel)
        )
        judged_losses = self._judged_losses(b, mel)
        # Where the mel changes: a blurred stop or a skipped consonant costs little of the distance itself.
        share = b["share"][:, :, 1:]
        change_loss = ((mel.diff(dim=2) - b["mel"].diff(dim=2)).abs() * share).sum() / self.config.mel_bands
        whole = loss + FIRST_WEIGHT * first_loss + PRIOR_WEIGHT * prior_loss + CHANGE_WEIGHT * change_loss
        whole = whole + self.consistency * torch.stack(judged_losses).sum()
        if self.discriminator is None:
            self.optimizer.step(whole)
            self._note(first_loss, loss, *judged_losses, self._train_judge(b))
        else:
            counted = (b["share"] > 0).float()  # neither padding nor bands that a recording lacks
            judged = b["mel"] * counted, mel * counted, prior.detach() * counted
            adversarial_loss = self.discriminator.flow_loss(*judged)
            self.optimizer.step(whole + balanced(loss, adversarial_loss, mel, self.adversarial))
            discriminator_loss = self.discriminator.loss(*(each.detach() for each in judged))
            self.discriminator_optimizer.step(discriminator_loss)
            judge_loss, against = self._train_judge(b), (adversarial_loss, discriminator_loss)
            self._note(first_loss, loss, *judged_losses, judge_loss, *against)
        self.ema.update()

    def _note(self, *losses: Tensor) -> None:
        """Update the running means of the first losses."""
        self.losses[: len(losses)].lerp_(torch.stack([each.detach() for each in losses]), 0.05)

    def swapped(
        self, b: dict[str, Tensor], recorded: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return rows with the tokens of some clips and the speakers of others, their cond, and the frames to judge.

        Half of them begin with tokens and mel of the speaker, as a clone does. recorded: tensors (batch, frames, …)
        that go with the tokens; the rows have what belongs to theirs.
        """
        rows, half = self.few, WINDOW_TOKENS // 2
        spoken, by = slice(0, rows), slice(self.batch - rows, self.batch)
        prompted = torch.rand(rows, 1, device=self.device) < 0.5
        # Half of the others get a speaker between two, so that there are more speakers than recorded ones.
        share = (
            torch.rand(rows, 1, device=self.device)
            * (torch.rand(rows, 1, device=self.device) < 0.5)
            * ~prompted
        )
        wanted = F.normalize(torch.lerp(b["wanted"][by], b["wanted"][by].roll(1, 0), share), dim=1)
        result = {"wanted": wanted, "blend": share, "speaker": nearby(wanted), "blocks": b["blocks"][spoken]}
        for name in ("ids", "valid"):
            mixed = torch.cat([b[name][by, :half], b[name][spoken, :half]], dim=1)
            result[name] = torch.where(prompted, mixed, b[name][spoken])
        for name, values in recorded.items():
            later = values[spoken].roll(2 * half, 1)  # a clip's first half is in the second half of its row
            result[name] = torch.where(prompted.view(-1, *[1] * (values.dim() - 1)), later, values[spoken])
        prompt = torch.arange(2 * WINDOW_TOKENS, device=self.device)[None] < 2 * half
        cond = b["given"][by] * (prompt & prompted)[:, None]
        judged = result["valid"].repeat_interleave(2, dim=1) & ~(prompt & prompted)
        return result, cond, judged

    def _judged_losses(self, b: dict[str, Tensor], own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return how far the speakers of swapped rows and their pitch are from the requested ones, and all phonemes.

        own: the mels of the batch in their own voices.
        """
        valid = b["valid"].repeat_interleave(2, dim=1)
        with torch.autocast(self.device.type, torch.bfloat16):
            with torch.no_grad():
                recorded = self.content(b["mel"])
                weights = phoneme_weights(b["phones"]) * valid
                f0_hz = self._f0_hz(b["mel"])
                voiced = (f0_hz > VOICED_ABOVE_HZ) & valid
            passed_on = {"phonemes": recorded.logits, "weights": weights, "voiced": voiced}
            rows, cond, judged = self.swapped(b, passed_on)
            _, _, mel = self._two_steps(rows, cond)
            noisy, noisy_own = (each + NOISE * torch.randn_like(each) for each in (mel, own))
            found = self.judge(noisy, judged)
            found_own = self.content(noisy_own)
            content_loss = self.content.distance(
                self.content(noisy), rows["phonemes"], rows["weights"] * judged
            )
            content_loss = (content_loss + self.content.distance(found_own, recorded.logits, weights)) / 2
            states_loss = self.content.state_distance(found_own, recorded.states, weights)
            content_loss = content_loss + FEATURE_WEIGHT * states_loss
        speaker_loss = distance(found, rows["wanted"])
        if self.pitch is None:
            return speaker_loss, torch.zeros_like(speaker_loss.detach()), content_loss
        by = slice(self.batch - self.few, self.batch)
        with torch.no_grad():
            own_pitch, known = mean_log_pitch(f0_hz[by], voiced[by])
            # A speaker between two has a pitch between theirs.
            wanted = torch.lerp(own_pitch, own_pitch.roll(1, 0), rows["blend"][:, 0])
        # Frames that are voiced in the recording: by those that seem to be voiced in the rendered mel, the flow was
        # led to draw a line at the wanted pitch through its pauses.
        log_pitch, enough = mean_log_pitch(self._f0_hz(mel), rows["voiced"] & judged)
        counted = (enough & known & known.roll(1, 0)).float()
        pitch_loss = ((log_pitch - wanted).abs() * counted).sum() / counted.sum().clamp(min=1)
        return speaker_loss, pitch_loss, content_loss

    def _f0_hz(self, mel: Tensor) -> Tensor:
        """Return the pitch of normalized mels, (batch, frames); zeros without a predictor."""
        if self.pitch is None:
            return torch.zeros_like(mel[:, 0])
        with torch.autocast(self.device.type, enabled=False):
            f0_hz: Tensor = self.pitch.pitch_hz(mel.float() * self.config.mel_std + self.config.mel_mean)
        return f0_hz

    def _train_judge(self, b: dict[str, Tensor]) -> Tensor:
        """Train the networks that judge rendered mels on recorded ones; return their loss."""
        noise = NOISE * torch.rand(self.batch, 1, 1, device=self.device) * torch.randn_like(b["mel"])
        noisy, few = b["mel"] + noise, slice(0, self.few)
        with torch.no_grad():
            power = self.voice_mel(self.to16k(b["audio"][few]))[:, : RATE * noisy.shape[2]]
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.judge.loss(noisy[few], b["valid"][few].repeat_interleave(2, dim=1), power)
            loss = loss + self.content.loss(noisy, b["phones"])
        self.judge_optimizer.step(loss)
        return loss

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the mean distance of the averaged model's mel from the true one, on held-out lines.

        The unit is that of the normalized mel. Before refining, the mel is integrated in small steps from noise;
        after it, in two steps from zeros.
        """
        b = self.validation_batch
        if b is None:
            return {}
        x, cond = b["noise"], torch.zeros_like(b["mel"])
        with self.ema.swapped_in(), torch.autocast(self.device.type, torch.bfloat16):
            if self.refining:
                mu, _, x = self._two_steps(b, cond)
            else:
                mu = self.net.encode(b["ids"], b["valid"], b["blocks"])
                conditioning = {"mu": mu, "speaker": self.net.speaker(b["speaker"]), "cond": cond}
                for i in range(VALIDATION_STEPS):
                    t = torch.full((len(x),), i / VALIDATION_STEPS, device=self.device)
                    v = self.net.decoder["estimator"](x, t=t, r=t, mask=self._mask(b), **conditioning)
                    x = x + v.float() / VALIDATION_STEPS
        bands = self.config.mel_bands
        distances = [((y.float() - b["mel"]).abs() * b["share"]).sum() / bands for y in (x, mu)]
        return dict(zip(("validation_mel", "validation_prior"), torch.stack(distances).tolist(), strict=True))

    @property
    def _stateful(self) -> dict[str, Any]:
        """Networks and optimizers by their names in a state."""
        parts = {
            "net": self.net,
            "optimizer": self.optimizer,
            "judge": self.judge,
            "content": self.content,
            "judge_optimizer": self.judge_optimizer,
        }
        if self.discriminator is not None:
            parts |= {
                "discriminator": self.discriminator,
                "discriminator_optimizer": self.discriminator_optimizer,
            }
        return parts

    def state_dict(self) -> dict[str, Any]:
        state = {name: part.state_dict() for name, part in self._stateful.items()}
        return state | {"ema": self.ema.average, "refining": self.refining}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.refining = state["refining"]
        for name, part in self._stateful.items():
            part.load_state_dict(state[name])
        self.ema.load(state["ema"])
