"""The flow and the vocoder with products of eight bits, for CPUs that multiply bytes but not bfloat16.

Rounded are the layers of the token encoder and of the estimator, and the convolutions of the vocoder's trunk.
Everything between them stays in float32. The twins are the plain networks (tests/accel/test_rounded.py).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightingale.backends.cpu.bf16 import with_parts
from nightingale.backends.shared.t3_inputs import zeros
from nightingale.backends.cpu import flow_attention as attending
from nightingale.backends.cpu import int8_layers as layers
from nightingale.backends.cpu.flow_attention import Op as At
from nightingale.backends.cpu.thread_pool import JOB_LENGTH, OP_LENGTH, Crew, Job
from nightingale.backends.cpu.t3_kernels import LANES, PER_GROUP
from nightingale.backends.cpu.int8_layers import BLOCKS, OUTPUTS_AT_ONCE, Op
from nightingale.backends.cpu.int8_layout import laid_out
from nightingale.backends.cpu.target import TOGETHER, Code
from nightingale.backends.shared.quantize import ZERO, block_of, round_blocks, round_weight
from nightingale.models.chatterbox.hift.generator import Hift, Snake
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.conv import CustomConv1d, supports_tap_products
from nightingale.models.layers.mapped_weights import release_pages

Net = TypeVar("Net", bound=nn.Module)


class Workshop:
    """Where layers are computed: machine code, and threads for each thread that asks."""

    def __init__(self, code: Code, *, signed: bool) -> None:
        """signed: as `Target` has it."""
        self.code, self.signed = code, signed
        self._own = threading.local()

    def team(self) -> _Team:
        """Of as many threads as torch would use here."""
        teams: dict[int, _Team] = self._own.__dict__.setdefault("teams", {})
        threads = torch.get_num_threads()
        if threads not in teams:
            teams[threads] = _Team(self.code, threads)
        return teams[threads]

    def __deepcopy__(self, _memo: object) -> Workshop:
        return self


class _Team:
    def __init__(self, code: Code, threads: int) -> None:
        self._job, self._ops = zeros((JOB_LENGTH,), np.int64), zeros((2, OP_LENGTH), np.int64)
        self._job[Job.OPS], self._job[Job.THREADS] = self._ops.ctypes.data, threads
        self._crew, self.threads = Crew(code, self._job, threads), threads
        self._room: NDArray[np.int8] = np.empty(0, np.int8)

    def run(self, *operations: Mapping[Any, int]) -> None:
        for number, facts in enumerate(operations):
            for place, fact in facts.items():
                self._ops[number, place] = fact
        self._job[Job.OP_COUNT] = len(operations)
        self._crew.run()

    def room(self, size: int) -> int:
        """Where so many bytes are free, until somebody asks again."""
        if self._room.nbytes < size:
            self._room = np.empty(2 * size, np.int8)
        return int(self._room.ctypes.data)


class RoundedLinear(nn.Module):
    def __init__(self, plain: nn.Linear, workshop: Workshop) -> None:
        super().__init__()
        rounded = round_weight(plain.weight.detach())
        self.block = rounded.codes.shape[-1]
        self.in_features, self.out_features, self._workshop = plain.in_features, plain.out_features, workshop
        codes, scales = laid_out(rounded.codes, rounded.scales, signed=workshop.signed)
        bias = torch.zeros(plain.out_features) if plain.bias is None else plain.bias.detach().clone()
        for name, value in (("codes", codes), ("scales", scales), ("bias", bias)):
            self.register_buffer(name, value)
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not isinstance(layer, nn.Linear) or layer.out_features % PER_GROUP:
            return False
        return any(layer.in_features % block == 0 for block in BLOCKS)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = x.new_empty(len(rows), self.out_features)
        team, each = self._workshop.team(), layers.own_bytes(self.in_features)
        facts = {
            Op.KIND: layers.LINEAR + BLOCKS.index(self.block), Op.X: rows.data_ptr(),
            Op.WEIGHTS: _at(self.codes), Op.SCALES: _at(self.scales), Op.BIAS: _at(self.bias),
            Op.OUT: out.data_ptr(), Op.COUNT: len(rows), Op.OUTPUTS: self.out_features,
            Op.WIDTH: self.in_features, Op.OWN: team.room(each * team.threads), Op.OWN_BYTES: each,
        }  # fmt: skip
        team.run(facts)
        return out.view(*x.shape[:-1], self.out_features)


class RoundedConv1d(CustomConv1d):
    def __init__(self, plain: nn.Conv1d, workshop: Workshop) -> None:
        super().__init__(plain)
        inputs, outputs, taps = plain.in_channels, plain.out_channels, plain.kernel_size[0]
        self._workshop, self.block = workshop, block_of(inputs)
        whole, scales = round_blocks(plain.weight.detach().transpose(1, 2), self.block)
        groups, blocks = outputs // OUTPUTS_AT_ONCE, inputs // self.block
        by_output = (groups, OUTPUTS_AT_ONCE, taps, blocks)
        codes = whole.to(torch.int8).view(*by_output, self.block // TOGETHER, TOGETHER)
        sums = (whole.sum(-1) * -ZERO).to(torch.int32).view(by_output)
        kept = {
            "codes": codes.permute(0, 2, 3, 4, 1, 5),
            "scales": scales.view(by_output).permute(0, 2, 3, 1),
            "sums": sums.permute(0, 2, 3, 1),
            "bias": torch.zeros(outputs) if plain.bias is None else plain.bias.detach(),
        }
        for name, value in kept.items():
            self.register_buffer(name, value.clone(memory_format=torch.contiguous_format))
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not supports_tap_products(layer) or isinstance(layer, CustomConv1d):
            return False
        return layer.in_channels % 16 == 0 == layer.out_channels % OUTPUTS_AT_ONCE

    def convolve_unpadded(self, x: Tensor) -> Tensor:
        """(batch, channels, time) -> (batch, outputs, time less the kernel's span)."""
        span = (self.kernel_size[0] - 1) * self.dilation[0]
        columns = x.shape[-1] - span
        # A vector at least, of which the rest is thrown away.
        padded = nn.functional.pad(x, (0, max(0, LANES - columns))).contiguous()
        out = x.new_empty(len(x), self.out_channels, padded.shape[-1] - span)
        for row, result in zip(padded, out, strict=True):
            self._one(row, result)
        return out[..., :columns]

    def _one(self, x: Tensor, out: Tensor) -> None:
        channels, length = x.shape
        team = self._workshop.team()
        codes = team.room(channels * length + 4 * (channels // self.block) * length)
        shared = {
            Op.CODES: codes, Op.STEPS: codes + channels * length, Op.WIDTH: channels, Op.BLOCK: self.block,
            Op.LENGTH: length,
        }  # fmt: skip
        convolve = {
            Op.KIND: layers.CONVOLVE, Op.WEIGHTS: _at(self.codes), Op.SCALES: _at(self.scales),
            Op.ZEROS: _at(self.sums), Op.BIAS: _at(self.bias), Op.OUT: out.data_ptr(),
            Op.COUNT: out.shape[1], Op.OUTPUTS: self.out_channels, Op.TAPS: self.kernel_size[0],
            Op.DILATION: self.dilation[0],
        }  # fmt: skip
        team.run({Op.KIND: layers.ROUND, Op.X: x.data_ptr(), **shared}, {**shared, **convolve})


class OwnSnake(Snake):
    """Not rounded, but in one pass."""

    def __init__(self, plain: Snake, workshop: Workshop) -> None:
        nn.Module.__init__(self)
        self.alpha, self._workshop = plain.alpha, workshop
        self.register_buffer("inverse", (plain.alpha.detach() + 1e-9).reciprocal())

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.write(x, out)
        return out

    def write(self, x: Tensor, out: Tensor) -> None:
        if x.stride(2) != 1 or out.stride(2) != 1:
            super().write(x, out)
            return
        for row, result in zip(x, out, strict=True):
            facts = {
                Op.KIND: layers.SNAKE, Op.X: row.data_ptr(), Op.OUT: result.data_ptr(),
                Op.WEIGHTS: _at(self.alpha), Op.SCALES: _at(self.inverse), Op.WIDTH: row.shape[0],
                Op.COUNT: row.shape[1], Op.LENGTH: row.stride(0), Op.OUTPUTS: result.stride(0),
            }  # fmt: skip
            self._workshop.team().run(facts)


class OwnAttend(AttentionProduct):
    """Queries and keys are rounded, values not. With a mask, or for few queries, torch does it."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__()
        self._workshop = workshop

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, queries, width = q.shape
        fits = width == attending.HEAD_WIDTH and queries >= attending.TILE
        if mask is not None or not fits or any(x.stride(3) != 1 for x in (q, k, v)):
            return super().forward(q, k, v, mask)
        out = q.new_empty(batch, queries, heads, width)
        team, keys = self._workshop.team(), k.shape[2]
        each, sizes = attending.own_bytes(keys), attending.room_bytes(keys, heads)
        codes = team.room(sum(sizes) + each * team.threads)
        steps = codes + sizes[0]
        facts = {
            At.QUERY_HEAD: q.stride(1), At.QUERY_ROW: q.stride(2), At.KEY_HEAD: k.stride(1),
            At.KEY_ROW: k.stride(2), At.VALUE_HEAD: v.stride(1), At.VALUE_ROW: v.stride(2),
            At.CODES: codes, At.STEPS: steps, At.LAID: steps + sizes[1], At.QUERY_COUNT: queries,
            At.KEY_COUNT: keys, At.HEADS: heads, At.OWN: codes + sum(sizes), At.OWN_BYTES: each,
        }  # fmt: skip
        for query, key, value, result in zip(q, k, v, out, strict=True):
            facts |= {At.QUERIES: query.data_ptr(), At.KEYS: key.data_ptr(), At.VALUES: value.data_ptr()}
            facts[At.OUT] = result.data_ptr()
            team.run({**facts, At.KIND: layers.LAY}, {**facts, At.KIND: layers.HEAR})
        return out.transpose(1, 2)


def rounded_flow(plain: Flow, workshop: Workshop) -> Flow:
    """The same flow with other layers; everything else is shared. A rounded one is given back."""
    estimator = plain.decoder["estimator"]
    if any(isinstance(part, RoundedLinear) for part in estimator.modules()):
        return plain
    # Angles of time are far apart in float32, and their products small.
    times = [part for name, part in estimator.named_modules() if "time_" in name or name.endswith(".mlp")]
    decoder = nn.ModuleDict({"estimator": _swapped(estimator, workshop, times)})
    return with_parts(plain, decoder=decoder, encoder=_swapped(plain.encoder, workshop))


def rounded_vocoder(plain: Hift, workshop: Workshop) -> Hift:
    """The same vocoder; the convolutions of its trunk round their inputs. A rounded one is given back."""
    if any(isinstance(part, RoundedConv1d) for part in plain.resblocks.modules()):
        return plain
    parts = {name: _swapped(getattr(plain, name), workshop) for name in ("resblocks", "source_resblocks")}
    return with_parts(plain, **parts)


def _swapped(net: Net, workshop: Workshop, left: list[nn.Module] | None = None) -> Net:
    """A copy that shares everything but the layers that fit. left: parts that stay as they are."""
    twins: dict[int, Any] = {id(weight): weight for weight in (*net.parameters(), *net.buffers())}
    kept = {id(inner) for part in left or [] for inner in part.modules()}
    for layer in net.modules():
        if id(layer) in kept:
            continue
        if RoundedLinear.fits(layer):
            twins[id(layer)] = RoundedLinear(layer, workshop)  # type: ignore[arg-type]
        elif RoundedConv1d.fits(layer):
            twins[id(layer)] = RoundedConv1d(layer, workshop)  # type: ignore[arg-type]
        elif isinstance(layer, AttentionProduct):
            twins[id(layer)] = OwnAttend(workshop)
        elif isinstance(layer, Snake):
            twins[id(layer)] = OwnSnake(layer, workshop)
    return copy.deepcopy(net, twins)


def _at(value: Tensor | nn.Module | None) -> int:
    assert isinstance(value, Tensor)
    return value.data_ptr()
