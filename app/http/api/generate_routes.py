"""The routes that generate: two kinds of requests, and two translations of chats."""

from collections.abc import Mapping
from typing import Any

from app.generation.request.prepare import prepare_chat, prepare_completion
from app.http import sse
from app.http.generate_endpoint import GenerateRoute
from app.protocol.anthropic import request as anthropic
from app.protocol.anthropic.answer import MessagesAnswer
from app.protocol.chat.translated import as_chat_request
from app.protocol.chat_answer import ChatAnswer
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_answer import CompletionAnswer
from app.protocol.completion_request import CompletionRequest
from app.protocol.responses import request as responses
from app.protocol.responses.answer import ResponsesAnswer

GENERATING: Mapping[str, GenerateRoute[Any, Any]] = {
    "/v1/completions": GenerateRoute(
        body=CompletionRequest,
        as_request=lambda body: body,
        prepare=prepare_completion,
        answer=lambda body, request, context: CompletionAnswer(request, context),
    ),
    "/v1/chat/completions": GenerateRoute(
        body=ChatRequest,
        as_request=lambda body: body,
        prepare=prepare_chat,
        answer=lambda body, request, context: ChatAnswer(request, context),
    ),
    "/v1/responses": GenerateRoute(
        body=responses.ResponsesRequest,
        as_request=as_chat_request,
        prepare=prepare_chat,
        answer=ResponsesAnswer,
        events=sse.RESPONSES,
        names=responses.ResponsesRequest.names,
    ),
    "/v1/messages": GenerateRoute(
        body=anthropic.MessagesRequest,
        as_request=as_chat_request,
        prepare=prepare_chat,
        answer=lambda body, request, context: MessagesAnswer(context),
        events=sse.MESSAGES,
        names=anthropic.MessagesRequest.names,
    ),
}
