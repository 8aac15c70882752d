"""Whether machine code of our own shall run T3 in eight bits here. No clock is asked: ONNX Runtime rounds
other sums, so the answer must be the same at every start, or the same seed would not speak the same words."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from nightingale.backends.onnx.capabilities import EXTRA, MOST_EXACT, broken, weights_of
from nightingale.backends.shared.packed_t3 import Form, Packed, pack
from nightingale.models.chatterbox.hift.generator import Snake
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, NANO, Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.conv import same_conv

if TYPE_CHECKING:
    from nightingale.backends.cpu.int8_networks import Workshop
    from nightingale.backends.cpu.runner import NativeRunner
    from nightingale.backends.cpu.target import Code, Target

PACKAGE = "llvmlite"
BLOCK, HALF_HEAD = 128, 16
"""What widths and halves of heads must be multiples of."""
TRIALS: Final = {
    True: replace(MULTILINGUAL, text_vocab=8, backbone=LlamaConfig(layers=1, width=128, heads=2, ffn=256)),
    False: replace(NANO, text_vocab=8, backbone=Gpt2Config(layers=1, width=128, heads=2)),
}
"""Whether heads are turned: a T3 to try."""
LAYERS_PAY: Final = ("neon",)
"""Where they were measured to. On x86 torch's waiting threads hold the cores that ours need (dev/LOG.md)."""
LOUDER = 6.0
"""What attention hears in the trial, so that it matters where it listens."""
NEAR = 0.06
"""Of the scores' spread: eight bits change 0.02 there, one position less 0.15."""


def refusal(config: T3Config, *, home: Path | None = None) -> str | None:
    """Why machine code should not run this T3; None if it should. The first call compiles it, or finds it in
    `home`, and tries it."""
    backbone = config.backbone
    inner = backbone.ffn if isinstance(backbone, LlamaConfig) else 4 * backbone.width
    for name, width in (("width", backbone.width), ("inner width", inner)):
        if width % BLOCK:
            return f"its {name} is {width}, not a multiple of {BLOCK}"
    if (head_width := backbone.width // backbone.heads) % (2 * HALF_HEAD):
        return f"its heads are {head_width} wide, not a multiple of {2 * HALF_HEAD}"
    if weights_of(config) <= MOST_EXACT:
        return "onnxruntime starts sooner with so small a model"
    if find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed (pip install '{EXTRA}')"
    return _tried(isinstance(backbone, LlamaConfig), home)


@cache
def layers_refusal(home: Path | None = None) -> str | None:
    """Why layers of the flow and the vocoder should not be run so; None if they should. Tried once."""
    if find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed (pip install '{EXTRA}')"
    return _verdict(lambda: layers_error(home), LAYERS_PAY)


@torch.inference_mode()
def layers_error(home: Path | None = None) -> float:
    """How far each kind of layer is from its exact twin, at most."""
    from nightingale.backends.cpu.int8_networks import OwnAttend, OwnSnake, RoundedConv1d, RoundedLinear

    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        wide, narrow = torch.nn.Linear(128, 64), torch.nn.Linear(64, 64)
        conv, snake = same_conv(32, 8, 3, dilation=2, causal=True), Snake(8)
    for layer in (wide, narrow, conv):
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=rng))
    shop = workshop(home)
    pairs: list[tuple[torch.nn.Module, torch.nn.Module, Tensor]] = [
        (wide, RoundedLinear(wide, shop), torch.randn(5, 128, generator=rng)),
        (narrow, RoundedLinear(narrow, shop), torch.randn(18, 64, generator=rng)),
        (conv, RoundedConv1d(conv, shop), torch.randn(1, 32, 37, generator=rng)),
        (snake, OwnSnake(snake, shop), torch.randn(1, 8, 37, generator=rng)),
    ]
    errors = [_off(own(x), plain(x)) for plain, own, x in pairs]
    asked, heard = (torch.randn(1, 2, 20, 64, generator=rng) for _ in range(2))
    attends = [attend(asked, heard, heard, None) for attend in (OwnAttend(shop), AttentionProduct())]
    return max(*errors, _off(*attends))


def open_runner(t3: T3, packed: Packed, *, home: Path | None = None, **room: Any) -> NativeRunner:
    """packed: in `form`. home: as for `refusal`. room: as the runner takes it."""
    from nightingale.backends.cpu.runner import NativeRunner

    backbone = t3.config.backbone
    code = _compiled(backbone.width // backbone.heads, isinstance(backbone, LlamaConfig), home)
    return NativeRunner(t3, packed, code, **room)


def form() -> Form:
    """Of weights, as this machine reads them."""
    from nightingale.backends.cpu.int8_layout import ForMachineCode

    return ForMachineCode(_target().signed)


@cache
def workshop(home: Path | None = None) -> Workshop:
    """For layers of eight bits; one for all networks. home: as for `refusal`."""
    from nightingale.backends.cpu.int8_layers import write_layers
    from nightingale.backends.cpu.int8_networks import Workshop
    from nightingale.backends.cpu.target import Code, machine_code

    target = _target()
    made = machine_code(lambda: write_layers(target), target, name="layers", home=home)
    return Workshop(Code(made, target), signed=target.signed)


@cache
def _target() -> Target:
    from nightingale.backends.cpu.target import of_this_machine

    found = of_this_machine()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


@cache
def _compiled(head_width: int, rotary: bool, home: Path | None) -> Code:
    from nightingale.backends.cpu.t3_program import write_step
    from nightingale.backends.cpu.target import Code, machine_code

    target, name = _target(), f"step {head_width} {rotary}"
    write = partial(write_step, target, head_width=head_width, rotary=rotary)
    return Code(machine_code(write, target, name=name, home=home), target)


@cache
def _tried(rotary: bool, home: Path | None) -> str | None:
    return _verdict(lambda: trial_error(TRIALS[rotary], partial(open_trial, code_home=home)))


def _verdict(trial: Callable[[], float], pays: Container[str] | None = None) -> str | None:
    """What stands against machine code here. trial: how far it is from what is right. pays: the targets on
    which it was measured to be faster; all, if not told."""
    try:
        from nightingale.backends.cpu.target import of_this_machine

        if isinstance(found := of_this_machine(), str):
            return found
        if pays is not None and found.name not in pays:
            return "beside torch's own threads products of bytes are no faster than float32 on this processor"
        error = trial()
    except Exception as problem:  # whatever a broken installation or another version of LLVM raises
        return broken(PACKAGE, problem)
    # Written so that what is not a number is refused too.
    if not error < NEAR:
        return f"machine code is off by {error:.2f} of the answers' spread in a trial; {NEAR} is allowed"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    slot: int
    token: int
    position: int


ROOM: Final[dict[str, Any]] = {"slots": 1, "rows_per_slot": 2, "capacity": 48, "batched": True, "threads": 2}


def open_trial(t3: T3, home: Path, *, code_home: Path | None = None) -> Any:
    packed = pack(t3.config, t3.state_dict(), home=home, source="trial", form=form())
    return open_runner(t3, packed, home=code_home, **ROOM)


@torch.inference_mode()
def trial_error(config: T3Config, opened: Callable[[T3, Path], Any] = open_trial) -> float:
    """How far a small T3 in eight bits is from its exact twin after a prompt and two tokens, at most."""
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        t3 = T3(config).eval().requires_grad_(False)
    for name, weight in t3.named_parameters():
        if weight.ndim == 2:
            loud = LOUDER if "o_proj." in name or "attn.c_proj." in name else 1.0
            weight.copy_(torch.randn(weight.shape, generator=rng) * loud * config.backbone.width**-0.5)
    prompt = torch.randn(2, 40, config.backbone.width, generator=rng)
    memory = t3.new_kv_cache(rows=2, capacity=48)
    exact = [t3.next_logits(prompt, memory)]
    with TemporaryDirectory(prefix="nightingale-trial-") as home:
        runner = opened(t3, Path(home))
        near = [runner.begin(0, prompt)]
        for position, token in enumerate((7, 4000), 1):
            exact.append(t3.next_logits(t3.embed_speech(torch.full((2, 1), token), position), memory))
            near.append(runner.step([_Turn(slot=0, token=token, position=position)])[0])
    return max(_off(a, b) for a, b in zip(near, exact, strict=True))


def _off(near: Tensor, exact: Tensor) -> float:
    return float((near - exact).square().mean().sqrt() / exact.std())
