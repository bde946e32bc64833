"""POST /tokenize and POST /detokenize: token ids of a text, and back."""

from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from app.http.bodies.held_bytes import Account
from app.http.generate_endpoint import check_model
from app.http.services import Services
from app.protocol.anthropic.request import CountTokensRequest
from app.protocol.chat.messages import cache_marks
from app.protocol.chat.translated import as_chat_request, own_names
from app.protocol.tokenize_request import DetokenizeRequest, TokenizeRequest
from engine.errors import InvalidRequest
from engine.types import IntColumn

TextsRequestT = TypeVar("TextsRequestT", TokenizeRequest, DetokenizeRequest, CountTokensRequest)


class TokenizeEndpoints:
    """The two routes of one model."""

    def __init__(self, services: Services) -> None:
        self._tokenizer = services.tokenizer
        self._encoder = services.encoder
        self._settings = services.settings
        self._reader = services.reader
        self._held = services.held
        self._offload = services.offload

    async def tokenize(self, request: Request) -> dict[str, Any]:
        """Return the token ids of a text or of a rendered conversation, and their number."""
        with self._held.account(request.state.key_sha256) as account:
            body = await self._parse(TokenizeRequest, request, account)
            request.state.ignored += cache_marks(body.messages or [])
            ids = await self._encode(body)
        num_items = len(ids) * (2 if body.return_token_strs else 1)
        self._check_size("prompt" if body.messages is None else "messages", num_items)
        return {
            "count": len(ids),
            "max_model_len": self._settings.max_model_len,
            "tokens": await self._offload.run(len(ids), ids.tolist),
            "token_strs": await self._spelled(ids) if body.return_token_strs else None,
        }

    async def count_tokens(self, request: Request) -> dict[str, Any]:
        """Return the number of tokens of a conversation in Anthropic's shape."""
        with self._held.account(request.state.key_sha256) as account:
            body = await self._parse(CountTokensRequest, request, account)
            with own_names(body.names()):
                chat = as_chat_request(body)
                ids = await self._encoder.encode_chat(chat.messages, chat.template_options())
        return {"input_tokens": len(ids)}

    async def detokenize(self, request: Request) -> dict[str, Any]:
        """Return the text of token ids, control tokens included."""
        with self._held.account(request.state.key_sha256) as account:
            body = await self._parse(DetokenizeRequest, request, account)
        self._check_size("tokens", len(body.tokens))
        self._encoder.check_ids("tokens", body.tokens)
        decode = partial(self._tokenizer.decode, body.tokens)
        return {"prompt": await self._offload.run(len(body.tokens), decode)}

    async def _encode(self, body: TokenizeRequest) -> IntColumn:
        if body.messages is not None:
            return await self._encoder.encode_chat(body.messages, body.template_options())
        return await self._encoder.tokenize(
            body.prompt or "", add_special_tokens=body.add_special_tokens is not False
        )

    async def _spelled(self, ids: IntColumn) -> list[str]:
        piece = self._tokenizer.vocabulary.piece
        return await self._offload.run(
            len(ids), lambda: [piece(token).decode(errors="replace") for token in ids]
        )

    def _check_size(self, field: str, num_items: int) -> None:
        limit = self._settings.max_answer_items
        if num_items > limit:
            raise InvalidRequest(
                f"{field}: {num_items} token ids and their texts are more than {limit}", param=field
            )

    async def _parse(
        self, model: type[TextsRequestT], request: Request, account: Account
    ) -> TextsRequestT:
        parsed = await self._reader.read(model, request.scope, request.receive, account)
        check_model(parsed.model, self._settings)
        return parsed
