"""How much an answer would hold, from its request, before anything of it is computed."""

from app.protocol.generation_fields import GenerationFields
from engine.errors import InvalidRequest


class AnswerSize:
    """Token ids, log-probabilities and repeated prompt tokens that one answer may list.

    Output counts only in answers that are not streamed: a stream lists it in small pieces.
    """

    def __init__(self, request: GenerationFields, limit: int) -> None:
        self._request = request
        self._limit = limit
        self._num_prompt_items = 0
        self._num_output_items = 0

    def add(self, prompt_len: int, room: int) -> int:
        """Add a prompt and its choices; returns the most tokens to generate behind it.

        Without a limit of its own the output ends where the answer would be too large.

        Args:
            prompt_len: tokens.
            room: tokens that may be generated at most; 0 to generate none.

        Raises:
            InvalidRequest: if the answer would be too large.
        """
        request = self._request
        self._num_prompt_items += request.num_prompt_copies * prompt_len * request.prompt_items
        items_each = 0 if request.stream else request.num_candidates * request.output_items
        left = self._limit - self._num_prompt_items - self._num_output_items
        if items_each and request.output_limit is None:
            room = min(room, max(1, left // items_each))
        self._num_output_items += items_each * room
        if self._num_prompt_items + self._num_output_items > self._limit:
            raise self._too_large()
        return room

    def _too_large(self) -> InvalidRequest:
        request = self._request
        field = request.output_items_field
        if self._num_prompt_items > self._num_output_items:
            field = request.prompt_items_field
        num_items = self._num_prompt_items + self._num_output_items
        return InvalidRequest(
            f"{field}: the answer would list {num_items} token ids, log-probabilities and repeated "
            f"tokens of prompts, at most {self._limit} are allowed; ask for fewer choices, "
            "alternatives or tokens",
            param=field,
        )
