"""Part `elementwise`: norms, rotation with its writes, activations and block copies, beside torch.

At a few rows these are launches rather than work; at thousands they should move memory at its rate.
Their inputs come from the kernel before and may be in the cache, so they are not rotated.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from engine.integers import div_ceil
from kernels.batch import BatchLayout
from kernels.reference import ReferenceBackend
from kernels.triton.backend import TritonBackend
from load_tests.bench.kernels.race import Call, KernelCase, KernelFigure, normal, race

_HEAD_DIM = 128
_BLOCK_SIZE = 16
_NUM_ROWS = (1, 64, 256, 2048)


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    num_layers: int


_MODELS = (_Model("8B", 4096, 14336, 32, 8, 32), _Model("13B", 5120, 20480, 40, 40, 40))


def measure(args: argparse.Namespace) -> Iterator[KernelFigure]:
    """Race all operations."""
    device = torch.device("cuda", torch.cuda.current_device())
    ours, torchs = (kind(device, torch.bfloat16) for kind in (TritonBackend, ReferenceBackend))
    for model in _MODELS[:: 2 if args.quick else 1]:
        for num_rows in _NUM_ROWS:
            our_calls = _calls(ours, model, num_rows)
            torch_calls = _calls(torchs, model, num_rows)
            for name, (call, num_bytes) in our_calls.items():
                systems = {"pagoda": [call]}
                # the writes of the twin skip slots by a mask, which waits for the device
                if name not in ("rope and write", "write"):
                    systems["torch"] = [torch_calls[name][0]]
                case = KernelCase(
                    group=f"elementwise, {model.name}",
                    case=f"{name}, {num_rows} rows",
                    num_bytes=num_bytes,
                )
                yield from race(case, systems, args.repeats)
        yield from _race_copies(ours, torchs, model, args)


def _calls(backend: ReferenceBackend, model: _Model, num_rows: int) -> dict[str, tuple[Call, int]]:
    """Calls by name with the bytes that each must move."""
    x, residual = normal(num_rows, model.hidden), normal(num_rows, model.hidden)
    gate_up = normal(num_rows, 2 * model.intermediate)
    weight = normal(model.hidden)
    calls: dict[str, tuple[Call, int]] = {
        "add and rms norm": (
            lambda: backend.add_rms_norm(x, residual, weight, 1e-5),
            4 * 2 * x.numel(),
        ),
        "silu and multiply": (lambda: backend.silu_mul(gate_up), 3 * gate_up.numel()),
    }
    if isinstance(backend, TritonBackend):
        layout = _layout(num_rows)
        heads = model.num_heads + 2 * model.num_kv_heads
        qkv = normal(num_rows, heads * _HEAD_DIM)
        num_blocks = div_ceil(num_rows, _BLOCK_SIZE)
        kv_layer = normal(num_blocks, 2, model.num_kv_heads, _BLOCK_SIZE, _HEAD_DIM)
        table = torch.rand(num_rows, _HEAD_DIM, device="cuda")
        calls["rope and write"] = (
            lambda: backend.rope_write(qkv, table, kv_layer, layout),
            4 * qkv.numel() + 4 * table.numel(),
        )
        calls["write"] = (lambda: backend.kv_write(qkv, kv_layer, layout), 4 * qkv.numel())
    return calls


def _race_copies(
    ours: ReferenceBackend, torchs: ReferenceBackend, model: _Model, args: argparse.Namespace
) -> Iterator[KernelFigure]:
    shape = (model.num_layers, 2, model.num_kv_heads, _BLOCK_SIZE, _HEAD_DIM)
    for num_blocks in (1, 8, 64):
        kv = normal(2 * num_blocks, *shape)
        sources = torch.arange(num_blocks, device="cuda")
        destinations = sources + num_blocks
        systems = {
            name: [partial(backend.copy_blocks, kv, sources, destinations)]
            for name, backend in (("pagoda", ours), ("torch", torchs))
        }
        case = KernelCase(
            group=f"elementwise, {model.name}",
            case=f"copy of {num_blocks} blocks",
            num_bytes=2 * kv.numel(),
        )
        yield from race(case, systems, args.repeats)


def _layout(num_tokens: int) -> BatchLayout:
    """Tokens that are written one after the other; nothing else is read."""
    positions = torch.arange(num_tokens, device="cuda")
    none = torch.empty(0, dtype=torch.int32, device="cuda")
    return BatchLayout(
        num_decodes=num_tokens,
        positions=positions,
        slot_mapping=positions,
        block_tables=none,
        context_lens=none,
        query_starts=none,
        max_context_len=num_tokens,
        max_query_len=1,
        logit_indices=None,
    )
