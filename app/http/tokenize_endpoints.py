"""POST /tokenize and POST /detokenize: token ids of a text, and back."""

from typing import Any

from starlette.requests import Request

from app.generation.prompt_encoder import PromptEncoder
from app.http.generate_endpoint import check_model
from app.http.request_body import read_json_body
from app.protocol.api_settings import ApiSettings
from app.protocol.parsing import RequestT, Schema, parse_object, parse_request
from app.protocol.tokenize_request import DETOKENIZE, TOKENIZE
from app.text.tokenizer import Tokenizer


class TokenizeEndpoints:
    """The two routes of one model."""

    def __init__(self, tokenizer: Tokenizer, encoder: PromptEncoder, settings: ApiSettings) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._settings = settings

    async def tokenize(self, request: Request) -> dict[str, Any]:
        """Return the token ids of a text or of a rendered conversation, and their number."""
        body = await self._parse(TOKENIZE, request)
        self._check_model(body.model)
        if body.messages is not None:
            ids = await self._encoder.encode_chat(
                body.messages, add_generation_prompt=body.add_generation_prompt
            )
        else:
            ids = await self._encoder.tokenize(
                body.prompt or "", add_special_tokens=body.add_special_tokens
            )
        pieces = [self._tokenizer.vocabulary.piece(token) for token in ids]
        return {
            "count": len(ids),
            "max_model_len": self._settings.max_model_len,
            "tokens": ids.tolist(),
            "token_strs": [piece.decode(errors="replace") for piece in pieces]
            if body.return_token_strs
            else None,
        }

    async def detokenize(self, request: Request) -> dict[str, Any]:
        """Return the text of token ids, control tokens included."""
        body = await self._parse(DETOKENIZE, request)
        self._check_model(body.model)
        self._encoder.check_ids("tokens", body.tokens)
        return {"prompt": self._tokenizer.decode(body.tokens)}

    async def _parse(self, schema: Schema[RequestT], request: Request) -> RequestT:
        body = await read_json_body(request.scope, request.receive, self._settings.max_body_bytes)
        parsed, _ = parse_request(schema, parse_object(body), self._settings.unknown_parameters)
        return parsed

    def _check_model(self, name: str | None) -> None:
        if name is not None:
            check_model(name, self._settings)
