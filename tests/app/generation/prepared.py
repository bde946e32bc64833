"""Requests that are checked and prepared for the engine, without HTTP."""

from typing import Any

from app.generation.request.prepare import (
    GenerationOptions,
    Prompt,
    prepare_chat,
    prepare_completion,
)
from app.generation.request.prompt_encoder import PromptEncoder
from app.limits import MAX_ANSWER_ITEMS
from app.protocol.api_settings import ApiSettings
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.text.offload import Offload
from app.text.tokenizer import Tokenizer
from tests.app.api.server import MAX_MODEL_LEN, MODEL, chat_body, completion_body
from tests.app.text.tokenizers import chatml_tokenizer

Prepared = tuple[list[Prompt], GenerationOptions]


def encoder(
    tokenizer: Tokenizer | None = None,
    *,
    max_model_len: int = MAX_MODEL_LEN,
    vocab_size: int | None = None,
    max_answer_items: int = MAX_ANSWER_ITEMS,
) -> PromptEncoder:
    tokenizer = tokenizer or chatml_tokenizer()
    settings = ApiSettings(
        model_id=MODEL,
        created_s=0,
        max_model_len=max_model_len,
        vocab_size=vocab_size or len(tokenizer.vocabulary),
        max_answer_items=max_answer_items,
    )
    return PromptEncoder(tokenizer, settings, Offload())


async def completion(prompts: PromptEncoder | None = None, **fields: Any) -> Prepared:
    request = CompletionRequest(**completion_body(**fields))
    return await prepare_completion(prompts or encoder(), request)


async def chat(prompts: PromptEncoder | None = None, **fields: Any) -> Prepared:
    return await prepare_chat(prompts or encoder(), ChatRequest(**chat_body(**fields)))
