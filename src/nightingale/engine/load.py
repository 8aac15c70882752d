"""A model's name or folder to everything the engine needs of it, and what runs it on this machine.

Wren comes from the package (or from a folder that `nightingale train export` wrote), the others from the hub.
With swaps.py this is the engine's door to accel/: guests.py names every faster way, and here it is let in.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nightingale import wren
from nightingale.backends.torch.cpu_layout import arrange, quicken
from nightingale.backends.torch.mel_stream import CONTEXT_TOKENS
from nightingale.backends.torch.pipelined import PipelinedRenderer, share_cores
from nightingale.engine.devices import choose_device, choose_dtype
from nightingale.backends.torch.drafts import Guesser, TorchDraftHead
from nightingale.decoding.decoder import GraphDecoder, Decoder, HostDecoder
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.engine.model import Model, Once, default_model, load_wren
from nightingale.engine.plan import DTYPES, PLAIN, Plan, Sizes, look_at, make_plan
from nightingale.engine.profiles import Profile
from nightingale.backends.torch.runner import PlainRunner
from nightingale.backends.torch.renderer import PROMPTS_KEPT_BYTES, CudaGraphRenderer, TorchRenderer, Renderer
from nightingale.engine.swaps import ALL_GUESTS, INT8, NATIVE, ONNX, ROUNDED, code_home, swapped
from nightingale.audio.crossfade import HOLD_FRAMES
from nightingale.backends.torch.sample_stream import guessed_frames
from nightingale.errors import ConfigError, ModelMissing
from nightingale.hub.find import locate
from nightingale.models.chatterbox.build import Networks, load_encoders, load_networks
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.text.frontend import open_frontend
from nightingale.voices.home import cache_folder
from nightingale.voices.voice import Voice

if TYPE_CHECKING:
    from nightingale.backends.shared.packed_t3 import Form, Packed

STEPS_AHEAD = 4
"""Steps that a device which draws by itself is asked for at a time; so late are their tokens read."""
RENDERED_TOGETHER = 16
"""Blocks of several utterances in one voice, at most, in one graph."""
OPTIONS = ("kind", "t3", "s3gen")
"""What may be said about a model besides its name: see `nightingale.hub.find.locate`."""


def load_model(
    name: str | Path,
    *,
    device: str,
    dtype: str,
    offline: bool,
    options: Mapping[str, Any],
    profile: Profile | None = None,
) -> Model:
    """The model on its device, ready to speak. profile: the only one it is for, if that is known already;
    what that one does not need is not loaded."""
    for option in options:
        if option not in OPTIONS:
            raise ConfigError(
                "unknown option", got=repr(option), allowed=", ".join(OPTIONS), fix="Check the spelling."
            )
        if name == "noise":
            raise ConfigError(
                "the model 'noise' has no options", got=repr(option), allowed="none", fix="Leave it out."
            )
    place, precision = choose_device(device), choose_dtype(dtype)

    def plan(sizes: Sizes) -> Plan:
        assert profile is not None
        return make_plan(sizes, look_at(place), profile, ALL_GUESTS, dtype=dtype)

    if name == "noise":
        from nightingale.engine.standin import load_noise

        model = load_noise()
    elif name == "wren" or (Path(name).expanduser() / wren.FILES["card"]).is_file():
        folder = wren.folder() if name == "wren" else Path(name).expanduser()
        model = load_wren(folder, PRESETS["wren"])
    else:
        model = _load_official(name, offline=offline, options=options, plan=plan if profile else None)
    networks = Networks(
        t3=model.networks.t3.to(place if model.t3_file is None else None, precision),
        flow=model.networks.flow.to(place, torch.float32),
        hift=model.networks.hift.to(place, torch.float32),
    )
    model = replace(model, dtype=dtype, networks=networks)
    if profile is None:
        return replace(model, networks=arrange(networks))
    chosen = plan_for(model, profile)
    # Swapped first, so that weights are never held in both precisions.
    arranged = arrange(swapped(networks, chosen), t3_in_torch=chosen.t3.way == PLAIN)
    return replace(model, networks=arranged)


def _load_official(
    name: str | Path,
    *,
    offline: bool,
    options: Mapping[str, Any],
    plan: Callable[[Sizes], Plan] | None,
) -> Model:
    files = locate(name, offline=offline, **options)
    card = files.card
    preset = PRESETS[card.name]
    t3 = None
    sizes = Sizes(name=card.name, t3=preset.t3, flow=preset.flow, defaults=MODEL_DEFAULTS[card.name])
    if plan is not None and plan(sizes).t3.way in ROUNDED:
        from nightingale.backends.shared.packed_t3 import without_backbone

        t3 = without_backbone(preset.t3, read_tensors(files["t3"]), source=files["t3"])
    conds = files.get("conds")
    return Model(
        name=card.name,
        voice_family=card.family,
        frontend=open_frontend(card.name, files["tokenizer"].parent),
        networks=load_networks(preset, files.paths, t3=t3),
        t3_file=None if t3 is None else files["t3"],
        encoders=Once(lambda: load_encoders(preset, files.paths)),
        defaults=MODEL_DEFAULTS[card.name],
        default_voice=Voice.from_conds_pt(conds, family=card.family) if conds else None,
        fingerprint=files.fingerprint,
    )


def plan_for(model: Model, profile: Profile) -> Plan:
    """What will run this model here."""
    networks = model.networks
    sizes = Sizes(name=model.name, t3=networks.t3.config, flow=networks.flow.config, defaults=model.defaults)
    machine = look_at(networks.t3.speech_head.weight.device)
    return make_plan(sizes, machine, profile, ALL_GUESTS, dtype=model.dtype)


def plan_named(name: str | Path | None, profile: Profile, *, device: str) -> tuple[Plan, str | None]:
    """The plan of a model by its name or folder; and what is missing of its weights, in words."""
    name = default_model() if name is None else name
    missing = None
    if name == "noise":
        from nightingale.engine.standin import NOISE

        preset = NOISE
    elif name == "wren" or (Path(name).expanduser() / wren.FILES["card"]).is_file():
        folder = wren.folder() if name == "wren" else Path(name).expanduser()
        name, preset = "wren", PRESETS["wren"]
        if absent := wren.missing(folder):
            missing = f"no {', '.join(absent)} in {folder}"
    else:
        try:
            name = locate(name, offline=True).card.name
        except ModelMissing as error:
            if name not in PRESETS:
                raise
            missing = f"{error.got}; {error.fix}"
        preset = PRESETS[str(name)]
    sizes = Sizes(name=str(name), t3=preset.t3, flow=preset.flow, defaults=MODEL_DEFAULTS[str(name)])
    return make_plan(sizes, look_at(choose_device(device)), profile, ALL_GUESTS, dtype="auto"), missing


def fitted(model: Model, plan: Plan) -> Model:
    """The model with T3 as the plan wants it: a copy, if that changes it, for the model may be shared."""
    t3 = model.networks.t3
    now = t3.speech_head.weight.dtype
    wanted = DTYPES.get(plan.t3.dtype, now)
    if wanted == now and plan.t3.way != "graphs":  # whose weights are laid out anew
        return model
    return replace(model, networks=replace(model.networks, t3=copy.deepcopy(t3).to(wanted)))


def open_decoder(model: Model, profile: Profile, plan: Plan, *, threads: int | None = None) -> Decoder:
    """T3 with its memory, as the plan says; whatever is recorded is recorded now. threads: T3's share."""
    t3, defaults = model.networks.t3, model.defaults
    rows = 1 if "cfg_weight" in defaults.ignored else 2
    longest = t3.prompt_length(defaults.max_text_ids)
    capacity = longest + defaults.max_new_tokens
    wishes = {
        "draft": profile.draft,
        "cache": profile.cache,
        "keep": profile.keep if profile.keep < 100 else "",
    }
    wished = [f"{name}={value}" for name, value in wishes.items() if value]
    if wished and plan.t3.way not in (PLAIN, ONNX.way):
        raise ConfigError(
            "this profile needs T3 in torch",
            got=f"{', '.join(wished)} for T3 the way {plan.t3.way!r}",
            allowed="T3 run the plain way, as by 'exact'; for a draft also by onnxruntime in float32",
            fix="Leave them out, or choose another profile.",
        )
    if plan.t3.way == "graphs":
        from nightingale.backends.cuda.decoder import DecodePlan, DecodeLoop
        from nightingale.backends.cuda.batched_sampling import needs_sorting

        buckets = tuple(2**n for n in range(profile.slots.bit_length()) if 2**n < profile.slots)
        decoder = DecodeLoop(
            t3,
            order=defaults.sampler,
            guided=rows == 2,
            capacity=capacity,
            plan=DecodePlan(slots=(*buckets, profile.slots), steps=STEPS_AHEAD),
        )
        decoder.warm(prompts=(t3.prompt_length(0), longest), sorting=needs_sorting(defaults.sampling))
        return GraphDecoder(decoder, steps=STEPS_AHEAD)
    from nightingale.backends.torch.speculation import open_speculation, spare_for

    pool: dict[str, Any] = {"slots": profile.slots, "rows_per_slot": rows, "capacity": capacity}
    how: dict[str, Any] = {"batched": profile.batched, "spare": spare_for(profile)}
    if plan.t3.way == NATIVE.way:
        from nightingale.backends.cpu.capabilities import form, open_runner

        packed = _packed(model, form())
        how = {"batched": profile.batched, "threads": threads}
        return HostDecoder(open_runner(t3, packed, home=code_home(), **pool, **how))
    if plan.t3.way in (INT8.way, ONNX.way):
        from nightingale.backends.shared.packed_t3 import FOR_ONNX
        from nightingale.backends.onnx.runner import CpuRunner, exact_graph

        graph = _packed(model, FOR_ONNX).graph if plan.t3.way == INT8.way else exact_graph(t3)
        swift = CpuRunner(t3, graph, **pool, **how, threads=threads)
        return open_speculation(model, profile, swift, threads) if profile.draft else HostDecoder(swift)
    from nightingale.backends.torch.paged import PagedDecoder, open_cells

    cells = open_cells(model, profile, pool, _cell_kernel(t3))
    runner = PlainRunner(t3, **pool, **how, pool=cells)
    draws = open_speculation(model, profile, runner) if profile.draft else HostDecoder(runner)
    return draws if cells is None else PagedDecoder(draws)


def _packed(model: Model, form: Form) -> Packed:
    """T3 in eight bits, made now if it is not there yet."""
    from nightingale.backends.shared.packed_t3 import digest_of_file, digest_of_tensors, pack

    t3, home, file = model.networks.t3, cache_folder().parent / "int8", model.t3_file
    tensors = t3.state_dict() if file is None else read_tensors(file)
    source = digest_of_tensors(tensors) if file is None else digest_of_file(file, home=home)
    return pack(t3.config, tensors, home=home, source=source, mapped=file is not None, form=form)


def _cell_kernel(t3: T3) -> Callable[..., Any] | None:
    """What attends over cells on a GPU; elsewhere, and without Triton, torch does."""
    if t3.speech_head.weight.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from nightingale.backends.cuda.paged_attention import attend_cells

    return attend_cells


def open_guess(t3: T3, head: DraftHead, *, fast: bool, threads: int | None, longest: int) -> Guesser:
    """fast: in eight bits, by onnxruntime, with so many threads, ready for `longest` guesses in a row."""
    if not fast:
        return TorchDraftHead(t3, head)
    from nightingale.backends.onnx.draft_head import OnnxDraftHead

    threads = torch.get_num_threads() if threads is None else threads
    return OnnxDraftHead(t3, head, threads=threads, longest=longest)


def load_draft(model: Model, name: str) -> Model:
    """A small T3 made for this one, from its file; or any other model."""
    t3 = model.networks.t3
    weight = t3.speech_head.weight
    if not name.endswith(".safetensors"):
        return load_model(name, device=str(weight.device), dtype=model.dtype, offline=True, options={})
    tensors = {key: value.to(weight) for key, value in read_tensors(Path(name)).items()}
    depths = [int(key.split(".")[2]) for key in tensors if key.startswith(("tfmr.layers.", "tfmr.h."))]
    config = t3.first_layers(1 + max(depths, default=0)).config
    small = load(lambda: T3(config), tensors, source=Path(name))
    if weight.device.type == "cpu":
        quicken(small)
    return replace(model, networks=replace(model.networks, t3=small))


def open_renderer(model: Model, profile: Profile, plan: Plan) -> Renderer:
    """The flow and the vocoder, as the plan says; whatever is recorded is recorded now."""
    networks = swapped(model.networks, plan)
    flow, hift = networks.flow, networks.hift
    plain = TorchRenderer(flow, hift, streaming=profile.streaming)
    if plan.flow.way != "graphs" or plan.vocoder.way != "graphs":
        if not profile.streaming or next(flow.parameters()).device.type != "cpu":
            return plain
        shares = share_cores(sum(weight.numel() for weight in model.networks.t3.parameters()))
        return plain if shares is None else PipelinedRenderer(plain, shares)
    from nightingale.backends.cuda.renderer import BlockRenderer

    blocks = [profile.first_block_tokens]
    while blocks[-1] < profile.largest_block_tokens:
        blocks.append(min(2 * blocks[-1], profile.largest_block_tokens))
    batches = tuple(size for size in (1, 4) if size < profile.slots)
    renderer = BlockRenderer(
        flow,
        hift,
        precision=DTYPES.get(plan.flow.dtype),
        blocks=tuple(blocks),
        context=CONTEXT_TOKENS,
        hold_frames=HOLD_FRAMES,
        guessed_frames=guessed_frames(hift),
        batches=(*batches, min(RENDERED_TOGETHER, profile.slots)),
    )
    studio = CudaGraphRenderer(
        renderer,
        plain,
        hift.config,
        together=renderer.batches[-1],
        kept_bytes=max(PROMPTS_KEPT_BYTES, (plan.machine.free_bytes or 0) // 10),
    )
    voice = model.default_voice
    if voice is not None and studio.takes(voice):
        renderer.warm(studio.memory(voice))
    return studio
