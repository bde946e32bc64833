"""The peer vLLM in process, as its users call it: `LLM` for batches, `AsyncLLM` for arrivals."""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from load_tests.bench.peers.measures import Beam, Knobs, Measure, Online
from load_tests.bench.peers.system import Timeline, draw_weights, is_modern, main
from load_tests.work import Work

# of the shapes with random weights
_END_ID = 2
# the library that it takes first anyway, which must be named to do without white space
_GRAMMARS = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}


class VllmSystem:
    """See `System`: with `AsyncLLM` for `Online`, with `LLM` for all other measures."""

    def __init__(self, knobs: Knobs, first: Measure) -> None:
        _write_tokenizer(Path(knobs.model))
        # a search sends every beam again at each step, and finds what it sent before
        has_prefix_cache = isinstance(first, Beam) or is_modern(first)
        self._arguments = _arguments(knobs, has_prefix_cache=has_prefix_cache)
        self._is_online = isinstance(first, Online)
        self._engine: Any = None
        self._next_id = 0
        self.facts: dict[str, object] = {}
        if not self._is_online:
            from vllm import LLM

            self._engine = LLM(**self._arguments, **_GRAMMARS, max_logprobs=32)
            self._engine.apply_model(draw_weights)
            self.facts = _facts(self._engine.llm_engine.vllm_config)

    def generate(self, works: Sequence[Work]) -> int:
        """Hand over all requests in one call."""
        prompts = [{"prompt_token_ids": work.prompt} for work in works]
        sampling = [_greedy(work.output_len, schema=work.schema) for work in works]
        results = self._engine.generate(prompts, sampling, use_tqdm=False)
        return sum(len(result.outputs[0].token_ids) for result in results)

    def search(self, prompts: Sequence[list[int]], width: int, output_len: int) -> int:
        """Search; the answers repeat their prompts."""
        from vllm.sampling_params import BeamSearchParams

        parameters = BeamSearchParams(beam_width=width, max_tokens=output_len, ignore_eos=True)
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        results = self._engine.beam_search(inputs, parameters)
        return sum(
            len(beam.tokens) - len(ids)
            for ids, result in zip(prompts, results, strict=True)
            for beam in result.sequences
        )

    async def serve(self, works: Sequence[Work]) -> list[Timeline]:
        """Open one stream per request at its time."""
        # the engine is made inside the event loop that it serves
        if self._engine is None:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments))
            await self._engine.collective_rpc("apply_model", args=(draw_weights,))
            self.facts = _facts(self._engine.vllm_config)
        start_s = time.perf_counter()
        streams = []
        for work in works:
            await asyncio.sleep(max(0.0, work.due_s - (time.perf_counter() - start_s)))
            streams.append(asyncio.create_task(self._stream(work, start_s)))
        return list(await asyncio.gather(*streams))

    def close(self) -> None:
        """End the engine's process; that of `LLM` ends with this one."""
        if self._is_online and self._engine is not None:
            self._engine.shutdown()

    async def _stream(self, work: Work, start_s: float) -> Timeline:
        self._next_id += 1
        timeline = Timeline(work)
        results = self._engine.generate(
            {"prompt_token_ids": work.prompt},
            _greedy(work.output_len, is_delta=True),
            request_id=str(self._next_id),
        )
        async for result in results:
            now_s = time.perf_counter() - start_s
            timeline.token_s += [now_s] * len(result.outputs[0].token_ids)
            timeline.num_cached = max(timeline.num_cached, result.num_cached_tokens or 0)
        return timeline


def _arguments(knobs: Knobs, *, has_prefix_cache: bool) -> dict[str, Any]:
    """Everything else stays at the peer's defaults; a knob of 0 too."""
    chosen = {
        "num_gpu_blocks_override": knobs.num_blocks,
        "max_num_seqs": knobs.max_num_seqs,
        "max_num_batched_tokens": knobs.max_num_batched_tokens,
    }
    return {
        "model": knobs.model,
        "dtype": knobs.dtype,
        "load_format": "dummy",
        "block_size": knobs.block_size,
        "max_model_len": knobs.max_model_len,
        "tensor_parallel_size": knobs.tensor_parallel_size,
        "gpu_memory_utilization": 0.92,
        "enable_prefix_caching": has_prefix_cache,
        "disable_log_stats": True,
        **{name: value for name, value in chosen.items() if value},
    }


def _greedy(output_len: int, *, schema: str = "", is_delta: bool = False) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    bounds: dict[str, Any] = {}
    if schema:
        from vllm.sampling_params import StructuredOutputsParams

        bounds["structured_outputs"] = StructuredOutputsParams(json=schema)
    kind = RequestOutputKind.DELTA if is_delta else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        temperature=0.0,
        ignore_eos=True,
        max_tokens=output_len,
        detokenize=False,
        output_kind=kind,
        **bounds,
    )


def _facts(config: Any) -> dict[str, object]:
    from vllm import __version__

    return {
        "name": f"vllm {__version__}",
        "kv_blocks": config.cache_config.num_gpu_blocks,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
    }


def _write_tokenizer(folder: Path) -> None:
    """Beam search asks for a tokenizer: one word for every id, if the folder has none."""
    path = folder / "tokenizer.json"
    if not path.exists():
        _write_words(path)
    settings_path = folder / "tokenizer_config.json"
    if not settings_path.exists():
        words = json.loads(path.read_text())["model"]["vocab"]
        end = next(word for word, index in words.items() if index == _END_ID)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
        settings_path.write_text(json.dumps(settings))


def _write_words(path: Path) -> None:
    vocab_size = json.loads(path.with_name("config.json").read_text())["vocab_size"]
    words = {f"t{index}": index for index in range(vocab_size)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "t0"}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model}
    path.write_text(json.dumps(tokenizer))


if __name__ == "__main__":
    # neither reports to its makers nor looks for models elsewhere; its other sampler is compiled
    # at first use, which needs a CUDA compiler; its processes are sent a function (`draw_weights`)
    os.environ |= {
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }
    main(VllmSystem)
