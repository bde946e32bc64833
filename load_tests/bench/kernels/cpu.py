"""Command `cpu_kernels`: the operations of one decode step and of prefill chunks.

Random weights in the shape of SmolLM2-135M, bfloat16. Prints milliseconds of the median step, split
by operation: of CPU time with one thread, since other processes may share the machine, with more
threads by the clock. Several numbers of threads take turns, and a table says by how much each
operation is faster with more.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from engine.integers import div_ceil
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout, SamplingColumns
from kernels.runtime import HostRuntime
from kernels.select import select_backend, torch_threads
from load_tests.bench.kernels.cpu_scaling import Step, print_scaling
from load_tests.bench.kernels.inputs import layout, random_tables, sampling_columns
from load_tests.options import at_least, several

NUM_LAYERS, HIDDEN, INTERMEDIATE, VOCAB = 30, 576, 1536, 49152
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
EPS = 1e-5
EXAMPLE = "python -m load_tests cpu_kernels --context 512"
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one transformer layer."""

    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    norm: Tensor


class RandomModel:
    """A random model whose operations are timed one by one."""

    def __init__(self, backend: KernelBackend, num_blocks: int, clock: Callable[[], float]) -> None:
        self.backend = backend
        self.clock = clock
        self.spent: dict[str, float] = defaultdict(float)
        self._embedding = _random(VOCAB, HIDDEN)
        self._layers = [self._make_layer() for _ in range(NUM_LAYERS)]
        self._head = backend.make_head(self._embedding.clone())
        shape = num_blocks, NUM_LAYERS, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM
        self._kv = HostRuntime().device_blocks(shape, torch.bfloat16)
        self._kv.copy_(_random(*shape))
        self._cos_sin = torch.rand(8192, HEAD_DIM)

    def step(self, layout: BatchLayout, columns: SamplingColumns) -> None:
        """Run one step on random tokens and add the time of each operation to `spent`."""
        backend, timed = self.backend, self._timed
        tokens = torch.randint(0, VOCAB, layout.positions.shape)
        residual = timed("embed", backend.embed, tokens, self._embedding)
        x = self._run_layers(residual, self._kv, layout)
        logits = timed("head", self._head, layout.logit_rows(x))
        timed("sample", backend.sample, logits, columns)

    def repeat(self, layout: BatchLayout, columns: SamplingColumns) -> float:
        """Run a step as an engine does, whose layers are recorded if it decodes; seconds."""
        start = self.clock()
        tokens = torch.randint(0, VOCAB, layout.positions.shape)
        x = self.backend.embed(tokens, self._embedding)
        x = self.backend.run_layers(self._run_layers, x, self._kv, layout)
        self.backend.sample(self._head(layout.logit_rows(x)), columns)
        return self.clock() - start

    def _run_layers(self, residual: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        backend, timed = self.backend, self._timed
        x = timed("norms", backend.rms_norm, residual, self._layers[0].norm, EPS)
        for index, layer in enumerate(self._layers):
            kv_layer = kv[:, index]
            x = timed("linears", layer.qkv, x)
            q = timed("rope_write", backend.rope_write, x, self._cos_sin, kv_layer, layout)
            x = timed("attention", backend.attention, q, kv_layer, layout, HEAD_DIM**-0.5)
            x = timed("linears", layer.output, x)
            x = timed("norms", backend.add_rms_norm, x, residual, layer.norm, EPS)
            x = timed("gated linears", layer.gate_up, x)
            x = timed("linears", layer.down, x)
            x = timed("norms", backend.add_rms_norm, x, residual, layer.norm, EPS)
        return x

    def _timed(self, name: str, operation: Callable[..., Result], *arguments: object) -> Result:
        start = self.clock()
        result = operation(*arguments)
        self.spent[name] += self.clock() - start
        return result

    def _make_layer(self) -> LayerWeights:
        make = self.backend.make_linear
        width = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
        return LayerWeights(
            qkv=make(_random(width, HIDDEN), None),
            output=make(_random(HIDDEN, NUM_HEADS * HEAD_DIM), None),
            gate_up=self.backend.make_gated_linear(_random(2 * INTERMEDIATE, HIDDEN)),
            down=make(_random(HIDDEN, INTERMEDIATE), None),
            norm=torch.ones(HIDDEN, dtype=torch.bfloat16),
        )


def make_layout(num_rows: int, context_len: int, num_new: int) -> BatchLayout:
    """Rows of equal length, each with its own blocks in random order."""
    tables = random_tables(num_rows, context_len, BLOCK_SIZE, "cpu")
    positions = torch.arange(context_len - num_new, context_len)
    blocks = tables[:, positions // BLOCK_SIZE].long()
    return layout(
        tables,
        torch.full((num_rows,), context_len, dtype=torch.int32),
        torch.arange(num_rows + 1) * num_new,
        slots=(blocks * BLOCK_SIZE + positions % BLOCK_SIZE).flatten(),
        num_decodes=num_rows if num_new == 1 else 0,
    )


def _random(*shape: int) -> Tensor:
    return (torch.randn(shape) * 0.02).bfloat16()


def _measured(model: RandomModel, layout: BatchLayout, columns: SamplingColumns) -> Step:
    model.spent.clear()
    start = model.clock()
    model.step(layout, columns)
    return Step(total_s=model.clock() - start, spent_s=dict(model.spent))


def _report(
    model: RandomModel, layout: BatchLayout, columns: SamplingColumns, repeats: int
) -> None:
    steps = [_measured(model, layout, columns) for _ in range(repeats + 1)][1:]
    median_s = median(step.total_s for step in steps)
    middle = min(steps, key=lambda step: abs(step.total_s - median_s))
    num_tokens = len(layout.positions)
    parts = "  ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in middle.spent_s.items())
    print(
        f"{_title(layout)}: {median_s * 1e3:6.1f} ms "
        f"(best {min(step.total_s for step in steps) * 1e3:.1f}), "
        f"{num_tokens / median_s:6.0f} tok/s | {parts}"
    )


def _title(layout: BatchLayout) -> str:
    return (
        f"{len(layout.context_lens):3} rows, {len(layout.positions):3} tokens, "
        f"context {layout.max_context_len}"
    )


def _compare(
    models: dict[int, RandomModel], layout: BatchLayout, columns: SamplingColumns, repeats: int
) -> None:
    """Let the models take turns; the first step of a turn finds the other's weights cached."""
    steps: dict[int, list[Step]] = {num_threads: [] for num_threads in models}
    repeated: dict[int, list[float]] = {num_threads: [] for num_threads in models}
    for _ in range(repeats):
        for num_threads, model in models.items():
            model.step(layout, columns)
            steps[num_threads] += [_measured(model, layout, columns) for _ in range(2)]
            repeated[num_threads] += [model.repeat(layout, columns) for _ in range(4)][2:]
    print_scaling(_title(layout).strip(), steps, repeated)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `cpu_kernels`."""
    number = at_least(1)
    parser.add_argument("--context", type=int, default=160, help="tokens of each decoding row")
    parser.add_argument("--temperature", type=float, default=0.0, help="of sampling")
    parser.add_argument("--top-p", type=float, default=1.0, help="of sampling")
    parser.add_argument("--repeats", type=number, default=9, help="steps, or turns, of each kind")
    parser.add_argument(
        "--threads", type=several(number), default=[1], help="that compute; several are compared"
    )
    parser.add_argument(
        "--rows", type=number, nargs="*", default=[1, 8, 16, 32], help="that decode"
    )
    parser.add_argument(
        "--chunks", type=number, nargs="*", default=[128, 256, 512], help="tokens of prompts"
    )
    parser.add_argument("--reference", action="store_true", help="time the torch fallback")


def run(args: argparse.Namespace) -> int:
    """Print decode steps of some batch sizes, then prefill chunks."""
    models = {num_threads: _model(num_threads, args) for num_threads in args.threads}
    layouts = [make_layout(num_rows, args.context, 1) for num_rows in args.rows]
    layouts += [make_layout(1, chunk, chunk) for chunk in args.chunks]
    for made in layouts:
        num_rows = len(made.context_lens)
        columns = sampling_columns(num_rows, args.temperature, top_p=args.top_p, device="cpu")
        if len(models) > 1:
            _compare(models, made, columns, args.repeats)
        else:
            _report(models[args.threads[0]], made, columns, args.repeats)
    return 0


def _model(num_threads: int, args: argparse.Namespace) -> RandomModel:
    backend = select_backend(
        "cpu", torch.bfloat16, compiled=not args.reference, num_threads=num_threads
    )
    torch.set_num_threads(torch_threads(backend, num_threads))
    most_tokens = max(args.context * max(args.rows, default=1), *args.chunks, 1)
    num_blocks = div_ceil(most_tokens, BLOCK_SIZE) + max(args.rows, default=1)
    is_alone = args.threads == [1]
    return RandomModel(backend, num_blocks, time.thread_time if is_alone else time.perf_counter)
