"""What runs where, in which precision, and why: decided once, when a model is loaded, and then printable.

A profile has wishes (profiles.py), a machine has limits, and each faster way knows what it needs. Whatever is
not granted runs the plain way, and the plan says what stood against it. Nothing here computes: a plan can be
made for weights that are not on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from nightingale.models.defaults import ModelDefaults
from nightingale.engine.profiles import Profile, Wish
from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.t3.config import T3Config

Stage = Literal["t3", "flow", "vocoder", "prompt"]
PLAIN = "plain"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Of weights as torch holds them; another name in a plan is a guest's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the plan must know of the device that will compute."""

    device: str
    """As torch spells it: cpu, cuda:0."""
    name: str
    """As people do."""
    instructions: str
    """A CPU's: what torch found, such as AVX512; a GPU's: its architecture, such as sm_90."""
    obstacle: str | None = None
    """Why a GPU that is there is of no use, or should be used otherwise; None if all is well."""
    free_bytes: int | None = None
    """Of a GPU's memory."""

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def architecture(self) -> int:
        """A GPU's: 90 for sm_90."""
        return int(self.instructions.removeprefix("sm_"))


def look_at(device: torch.device) -> Machine:
    """The machine as it is now."""
    if device.type != "cuda":
        instructions = torch.backends.cpu.get_cpu_capability()
        return Machine(device=str(device), name=device.type, instructions=instructions, obstacle=_no_gpu())
    card = torch.cuda.get_device_properties(device)
    architecture = f"sm_{card.major}{card.minor}"
    known = architecture in torch.cuda.get_arch_list()
    return Machine(
        device=str(device),
        name=card.name,
        instructions=architecture,
        obstacle=None if known else f"this build of torch knows no {architecture}",
        free_bytes=torch.cuda.mem_get_info(device)[0],
    )


def _no_gpu() -> str | None:
    """A build for CUDA that finds none is worth a word; a build without CUDA has nothing to miss."""
    if torch.version.cuda is None or torch.cuda.is_available():
        return None
    return f"torch is built for CUDA {torch.version.cuda} and finds no device: no GPU, or too old a driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a model, as far as a plan depends on them."""

    name: str
    t3: T3Config
    flow: FlowConfig
    defaults: ModelDefaults

    @property
    def guided(self) -> bool:
        """Whether T3 may need two rows for one utterance."""
        return "cfg_weight" not in self.defaults.ignored

    def t3_memory_bytes(self, slots: int, itemsize: int) -> int:
        """Of keys and values for so many utterances of the longest kind."""
        positions = self.t3.prompt_length(self.defaults.max_text_ids) + self.defaults.max_new_tokens
        backbone, rows = self.t3.backbone, slots * (2 if self.guided else 1)
        return 2 * rows * positions * backbone.layers * backbone.width * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A faster way that may be swapped in for a stage. guests.py names them all."""

    way: str
    stage: Stage
    kind: str
    """Of the devices it is for: cuda, cpu."""
    what: str
    """In words, for the plan."""
    refusal: Callable[[Sizes, Machine, Profile, str], str | None]
    """Why it cannot be used in this dtype; None if it can."""
    extra: bool = False
    """Nobody was promised it: where it cannot be used the plan says so, and no warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What does the work of one stage."""

    stage: Stage
    way: str
    dtype: str
    why: str
    refused: tuple[str, ...] = ()
    """What was wished for, is for this kind of device, and yet cannot be."""
    foregone: tuple[str, ...] = ()
    """The same of what would only have been nice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    profile: str
    model: str
    machine: Machine
    t3: Part
    """Its prompt and its steps."""
    flow: Part
    vocoder: Part
    prompt: Part
    """What the flow remembers of a voice's prompt: made the flow's way, once for a voice."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.t3, self.flow, self.vocoder, self.prompt

    @property
    def refusals(self) -> list[str]:
        """To be said once: what is slower here than the profile promises, and why."""
        told = [self.machine.obstacle] if self.machine.obstacle else []
        return told + [f"{part.stage}: {why}" for part in self.parts for why in part.refused]


def make_plan(
    sizes: Sizes, machine: Machine, profile: Profile, guests: Mapping[tuple[str, str], Guest], *, dtype: str
) -> Plan:
    """dtype: T3's precision, if the user has chosen one; "auto" leaves it to the profile."""

    def part(stage: Stage, wishes: tuple[Wish, ...], plain_dtype: str) -> Part:
        refused: list[str] = []
        foregone: list[str] = []
        for wish in wishes:
            guest = guests.get((stage, wish.way))
            if guest is None or guest.kind != machine.kind:
                continue
            against = guest.refusal(sizes, machine, profile, wish.dtype)
            if against is None:
                told = {"refused": tuple(refused), "foregone": tuple(foregone)}
                return Part(stage=stage, way=wish.way, dtype=wish.dtype, why=guest.what, **told)
            (foregone if guest.extra else refused).append(f"no {wish.way}: {against}")
        why = _why_plain(wishes, machine, profile, [*refused, *foregone])
        told = {"refused": tuple(refused), "foregone": tuple(foregone)}
        return Part(stage=stage, way=PLAIN, dtype=plain_dtype, why=why, **told)

    plain = "float32" if dtype == "auto" else dtype
    wished = profile.t3 if dtype == "auto" else tuple(_in(wish, dtype) for wish in profile.t3)
    flow = part("flow", profile.flow, "float32")
    remembered = "rendered once for each voice" if profile.streaming else "rendered again with each piece"
    return Plan(
        profile=profile.name,
        model=sizes.name,
        machine=machine,
        t3=part("t3", wished, plain),
        flow=flow,
        vocoder=part("vocoder", profile.vocoder, "float32"),
        prompt=Part(stage="prompt", way=PLAIN, dtype=flow.dtype, why=remembered),
    )


def _in(wish: Wish, dtype: str) -> Wish:
    """Integers stay integers: who chooses between floats has not spoken of them."""
    return wish if wish.dtype.startswith("int") else replace(wish, dtype=dtype)


def _why_plain(wishes: tuple[Wish, ...], machine: Machine, profile: Profile, refused: list[str]) -> str:
    if refused:
        return "the faster ways were refused"
    if not wishes:
        return f"{profile.name} is the reference, and has no faster way"
    return f"{profile.name} has no faster way on {machine.kind}"
