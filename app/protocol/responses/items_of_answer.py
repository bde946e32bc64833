"""Items of an answer of /v1/responses, and the events by which one grows."""

from typing import Any

from app.text.reply.parts import ReplyPart

Events = list[tuple[str, dict[str, Any]]]
_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


class Ids:
    """Ids of the items of one answer."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._num_items = 0

    def next(self, part: ReplyPart) -> str:
        """Return the id of the item that begins with a part."""
        self._num_items += 1
        return f"{_PREFIXES[part.kind]}_{self._request_id}_{self._num_items - 1}"


def item_of(part: ReplyPart, ids: Ids, status: str) -> dict[str, Any]:
    """Return an item that is one whole part."""
    item: dict[str, Any] = {"id": ids.next(part), "status": status}
    if part.kind == "text":
        return {**item, "type": "message", "role": "assistant", "content": [_output(part.text)]}
    if part.kind == "reasoning":
        content = [{"type": "reasoning_text", "text": part.text}]
        return {**item, "type": "reasoning", "summary": [], "content": content}
    return {
        **item,
        "type": "function_call",
        "call_id": part.id,
        "name": part.name,
        "arguments": part.text,
    }


def begin_item(part: ReplyPart, ids: Ids, number: int) -> "GrowingItem":
    """Return the item that begins with a part; it has nothing of it yet."""
    return GrowingItem(part, item_of(part.with_text(""), ids, "in_progress"), number)


class GrowingItem:
    """An item while it grows.

    Attributes:
        item: as it is so far.
    """

    def __init__(self, first: ReplyPart, item: dict[str, Any], number: int) -> None:
        self.item = item
        self._first = first
        self._number = number
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def takes(self, part: ReplyPart) -> bool:
        """Whether a part goes on with this item."""
        return (part.kind, part.number) == (self._first.kind, self._first.number)

    def opening(self) -> Events:
        """Return the events that begin it."""
        bare = {**self.item, "content": []} if "content" in self.item else self.item
        events: Events = [
            ("response.output_item.added", {"output_index": self._number, "item": bare})
        ]
        if "content" in self.item:
            part = self.item["content"][0]
            events.append(("response.content_part.added", {**self._place(), "part": part}))
        return events

    def add(self, part: ReplyPart, logprobs: list[dict[str, Any]]) -> Events:
        """Return the event of a further part."""
        self._texts.append(part.text)
        fields = {**self._place(), "delta": part.text}
        if part.kind == "text":
            self._logprobs += logprobs
            fields["logprobs"] = logprobs
        return [(f"{self._kind()}.delta", fields)] if part.text else []

    def closing(self, status: str) -> Events:
        """Return the events that end it."""
        text = "".join(self._texts)
        self.item = {**self.item, "status": status}
        if self._first.kind == "call":
            self.item["arguments"] = text
            fields = {**self._place(), "name": self.item["name"], "arguments": text}
            events: Events = [(f"{self._kind()}.done", fields)]
        else:
            part = {**self.item["content"][0], "text": text}
            done = {**self._place(), "text": text}
            if self._first.kind == "text":
                part["logprobs"] = done["logprobs"] = self._logprobs
            self.item["content"] = [part]
            events = [
                (f"{self._kind()}.done", done),
                ("response.content_part.done", {**self._place(), "part": part}),
            ]
        done_item = {"output_index": self._number, "item": self.item}
        return [*events, ("response.output_item.done", done_item)]

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self.item["id"], "output_index": self._number}
        return place if self._first.kind == "call" else {**place, "content_index": 0}

    def _kind(self) -> str:
        kinds = {
            "text": "response.output_text",
            "reasoning": "response.reasoning_text",
            "call": "response.function_call_arguments",
        }
        return kinds[self._first.kind]


def _output(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
