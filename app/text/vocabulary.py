"""Which bytes every token stands for, so that tokens can be turned into text bytewise."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.errors import ConfigError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """The bytes of every token id, made once from a tokenizer and its decoder.

    Attributes:
        pieces: bytes of each id; empty for ids that no token has.
        special_ids: ids of the control tokens.
        special_texts: how each control token is spelled, by id.
        lost_bytes: bytes that no token of a byte-level tokenizer holds; empty where bytes hold
            every text, None for a tokenizer of characters.
        space: how the tokenizer spells a space, where not as bytes.
        drops_first_space: whether the tokenizer adds a space before the first word of a text.
    """

    def __init__(self, backend: Backend) -> None:
        added = backend.get_added_tokens_decoder()
        self.special_texts = {id: token.content for id, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_texts)
        spelling = _read_decoder(backend)
        self.lost_bytes = _lost_bytes(backend, spelling)
        self.space = spelling.space
        self.drops_first_space = spelling.drops_first_space
        tokens = backend.get_vocab(with_added_tokens=True)
        self.pieces = [b""] * (max(tokens.values()) + 1)
        for token, id in tokens.items():
            self.pieces[id] = spelling.to_bytes(token)
        self.longest_piece = max(map(len, self.pieces))

    def __len__(self) -> int:
        return len(self.pieces)

    def special_ids_of(self, texts: Collection[str]) -> frozenset[int]:
        """Return the ids of the control tokens that are spelled so."""
        return frozenset(id for id, text in self.special_texts.items() if text in texts)

    def piece(self, token: int) -> bytes:
        """Bytes of a token; none for the padding rows of an embedding, which no token has."""
        return self.pieces[token] if token < len(self.pieces) else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spelling:
    """How a tokenizer spells bytes in its vocabulary."""

    byte_level: bool = False
    byte_fallback: bool = False
    space: str | None = None
    drops_first_space: bool = False

    def to_bytes(self, token: str) -> bytes:
        if self.byte_level:
            return _from_byte_level(token)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return (token if self.space is None else token.replace(self.space, " ")).encode()


def _lost_bytes(backend: Backend, spelling: _Spelling) -> bytes | None:
    known = backend.get_vocab(with_added_tokens=False)
    if spelling.byte_level:
        return bytes(byte for symbol, byte in _BYTE_LEVEL.items() if symbol not in known)
    falls_back = getattr(backend.model, "byte_fallback", False)
    return b"" if falls_back and all(f"<0x{byte:02X}>" in known for byte in range(256)) else None


def _read_decoder(backend: Backend) -> _Spelling:
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
    parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    found: dict[str, Any] = {}
    for part in parts:
        found |= _read_decoder_part(part)
    return _Spelling(**found)


def _read_decoder_part(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "ByteLevel"}:
            return {"byte_level": True}
        case {"type": "ByteFallback"}:
            return {"byte_fallback": True}
        case {"type": "Fuse"}:
            return {}
        case {"type": "Replace", "pattern": {"String": str(space)}, "content": " "}:
            return {"space": space}
        case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
            return {"drops_first_space": start == 1}
        case {"type": "Metaspace", "replacement": str(space), "prepend_scheme": scheme}:
            return {"space": space, "drops_first_space": scheme != "never"}
    raise ConfigError(f"a tokenizer with the decoder {part!s:.200} is not supported")


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE.

    Printable bytes of Latin-1 stand for themselves; the others, in order, are moved to 256 and up.
    Source: Radford et al. 2019, the encoder of GPT-2, https://github.com/openai/gpt-2
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_LEVEL[character] for character in token])
    except KeyError:
        # an added token with characters outside the alphabet stands for its own text
        return token.encode()
