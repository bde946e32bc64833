"""The bodies of all routes; prints their JSON schemas to tools that must not import this.

`python -m app.http.schemas` writes one JSON object: path -> schema.
"""

import json
import sys
from collections.abc import Mapping

from app.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.embeddings.request import EmbeddingRequest, ScoreRequest
from app.protocol.prefix_request import PrefixRequest
from app.protocol.responses.request import ResponsesRequest
from app.protocol.strict import Strict
from app.protocol.tokenize_request import DetokenizeRequest, TokenizeRequest

BODIES: Mapping[str, type[Strict]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/score": ScoreRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/prefixes": PrefixRequest,
}


def main() -> None:
    """Write the schemas to standard output."""
    json.dump({path: model.model_json_schema() for path, model in BODIES.items()}, sys.stdout)


if __name__ == "__main__":
    main()
