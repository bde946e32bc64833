"""The engine in process, as one of the systems that continue prompts on the CPU."""

from engine.config import EngineConfig
from load_tests.local_engine import LocalEngine, greedy


class CpuEngine:
    """See `Generator`."""

    name = "pagoda"

    def __init__(self, config: EngineConfig) -> None:
        self._engine = LocalEngine(config)

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts at once by `output_len` tokens each, greedily, past end tokens."""
        first_id = self._engine.next_id
        for prompt in prompts:
            self._engine.add(prompt, greedy(output_len))
        outputs: list[list[int]] = [[] for _ in prompts]
        for step in self._engine.steps():
            for request_id, token in zip(step.request_ids, step.tokens, strict=True):
                outputs[request_id - first_id].append(token)
        return outputs

    def close(self) -> None:
        """Give the memory back."""
        self._engine.close()
