"""What transformers computes with the model that the engine serves."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria

from tests.app.api.server import MAX_MODEL_LEN, encode
from tests.app.text.tokenizers import chatml_tokenizer

EOS = 2
PROMPT = encode("The quick brown fox jumps over the lazy dog. It costs 12.50")


def make_model() -> Any:
    config = LlamaConfig(
        vocab_size=len(chatml_tokenizer().vocabulary),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_id=EOS,
        # far from uniform, so that no two beams tie
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    return model.eval()


@torch.inference_mode()
def logprobs(model: Any, prompt: list[int], ids: list[int]) -> Any:
    """Raw log-probabilities [len(ids), vocab_size] of a continuation."""
    logits = model(torch.tensor([prompt + ids[:-1]])).logits
    return logits[0, len(prompt) - 1 :].log_softmax(-1)


@torch.inference_mode()
def search(model: Any, max_tokens: int, **settings: Any) -> Any:
    """Four beams after `PROMPT`, the best first: `sequences` and `sequences_scores`."""
    return model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **settings,
    )


class StopString(StoppingCriteria):
    """Ends a beam whose text after the prompt and `min_tokens` tokens holds a string."""

    def __init__(self, stop: str, min_tokens: int) -> None:
        self._stop = stop
        self._start = len(PROMPT) + min_tokens
        self._pieces = chatml_tokenizer().vocabulary.pieces

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        texts = (b"".join(self._pieces[i] for i in row[self._start :]) for row in input_ids)
        return torch.tensor([self._stop.encode() in text for text in texts])
