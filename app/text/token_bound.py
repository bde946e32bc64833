"""How many tokens a text has at least, in a small part of the time that tokenising it takes."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Backend

from app.text.vocabulary import Vocabulary

# stands for one token, whichever; no text in UTF-8 has this byte
ONE_TOKEN = b"\xff"
# nor this one, which stands for what the normaliser may change
_CHANGED = 0xFE
# looked at before what is known is compared with what is enough
_CHUNK_BYTES = 1 << 16
# more than sums of so many floating-point numbers are wrong by
_EPSILON = 1e-6
_SPACES = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "
_BEYOND_ASCII = bytes(range(0x80, 0xFF))
_LOSSLESS_MODELS = ("BPE", "Unigram")
# parts of a tokenizer that only cut a text up, or spell it otherwise
_CUTTING = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts")


class TokenBound:
    """Lower bounds of the number of tokens, where every byte of a text is in one of them.

    The bytes that a token stands for are a part of its piece. So between two bytes that are beside
    each other in no piece one token ends and another begins, which makes a text a row of runs of a
    token or more. In a run, a byte weighs 1 / (bytes of the longest piece that has it); no token
    weighs more than 1. The same holds where one byte value weighs 1 / (times that it is in one
    piece) and the others nothing. Bytes that may be lost or changed weigh nothing, and may stand
    beside any other.

    Args:
        pieces: bytes of all tokens; together they have all bytes that are not unsure.
        unsure: bytes that may be lost or changed.
        composes: whether a character of ASCII may become another one with what is behind it.
    """

    def __init__(self, pieces: Iterable[bytes], *, unsure: bytes, composes: bool) -> None:
        self._composes = composes
        known = [piece for piece in pieces if piece]
        data = np.frombuffer(b"".join(known), np.uint8)
        lengths = np.array([len(piece) for piece in known])
        owners = np.repeat(np.arange(len(known)), lengths)
        longest, self._most_times = np.ones(256), np.ones(256)
        np.maximum.at(longest, data, np.repeat(lengths, lengths))
        owned, times = np.unique(owners * 256 + data, return_counts=True)
        np.maximum.at(self._most_times, owned % 256, times)
        self._is_sure = np.ones(256, np.bool_)
        self._is_sure[[_CHANGED, *unsure]] = False
        self._weights = self._is_sure / longest
        self._can_join = np.zeros((256, 256), np.bool_)
        is_inside = owners[1:] == owners[:-1]
        self._can_join[data[:-1][is_inside], data[1:][is_inside]] = True
        self._can_join |= ~self._is_sure | ~self._is_sure[:, None]
        self._can_join[ONE_TOKEN[0], :] = self._can_join[:, ONE_TOKEN[0]] = False
        self._weights[ONE_TOKEN[0]] = self._most_times[ONE_TOKEN[0]] = 1.0

    def at_least(self, text: bytes, enough: int) -> int:
        """Return a number of tokens that a text has at least.

        Args:
            text: in UTF-8, or with `ONE_TOKEN` in some places.
            enough: the rest is not looked at once as many are found.
        """
        data, found = np.frombuffer(text, np.uint8), 0
        for start in range(0, len(data), _CHUNK_BYTES):
            # a token on a border is counted before and behind it
            found += self._of_chunk(self._codes(data, start)) - (start > 0)
            if found >= enough:
                break
        return max(found, 0)

    def _codes(self, data: npt.NDArray[np.uint8], start: int) -> npt.NDArray[np.uint8]:
        """Bytes of a chunk; those that what is behind them may change are marked as changed."""
        chunk = data[start : start + _CHUNK_BYTES]
        behind = data[start + 1 : start + 1 + _CHUNK_BYTES]
        is_changed = (behind >= 0x80) & (behind != ONE_TOKEN[0])
        if not self._composes or not is_changed.any():
            return chunk
        codes = chunk.copy()
        before = codes[: len(behind)]
        before[is_changed & (before != ONE_TOKEN[0])] = _CHANGED
        return codes

    def _of_chunk(self, codes: npt.NDArray[np.uint8]) -> int:
        pairs = codes[:-1].astype(np.intp) * 256 + codes[1:]
        borders = np.flatnonzero(~self._can_join.ravel()[pairs]) + 1
        starts = np.concatenate((np.zeros(1, np.intp), borders))
        weights = np.add.reduceat(self._weights[codes], starts)
        is_any = np.maximum.reduceat(self._is_sure[codes], starts)
        of_runs = np.maximum(np.ceil(weights - _EPSILON), is_any).sum()
        times = np.bincount(codes, minlength=256) * self._is_sure
        of_one_byte = np.ceil((times / self._most_times).max() - _EPSILON)
        return int(max(of_runs, of_one_byte))


def bound_of(backend: Backend, vocabulary: Vocabulary) -> TokenBound | None:
    """Return what bounds the tokens of a tokenizer, or None where it may lose or change any text.

    A normaliser may compose characters (NFC) or spell spaces otherwise; of others nothing is known.
    """
    lost_bytes, space = vocabulary.lost_bytes, vocabulary.space
    normalizers, cutters = _parts(backend.normalizer), _parts(backend.pre_tokenizer)
    is_known = (
        lost_bytes is not None
        and type(backend.model).__name__ in _LOSSLESS_MODELS
        and all(_spells_spaces(part, space) or part["type"] == "NFC" for part in normalizers)
        and all(_only_cuts(part, space) for part in cutters)
    )
    if not is_known:
        return None
    added = backend.get_added_tokens_decoder().values()
    composes = any(part["type"] == "NFC" for part in normalizers)
    unsure = bytes(lost_bytes or b"")
    if composes:
        unsure += _BEYOND_ASCII
    if any(token.lstrip or token.rstrip for token in added):
        # white space beside them is no other token's
        unsure += _SPACES + _BEYOND_ASCII
    spelled = (token.content.encode() for token in added)
    return TokenBound([*vocabulary.pieces, *spelled], unsure=unsure, composes=composes)


def _parts(component: Any) -> list[dict[str, Any]]:
    """Return what a normaliser or pre-tokenizer is made of."""
    description = json.loads(component.__getstate__()) if component else None
    return list(_leaves(description)) if description else []


def _leaves(description: dict[str, Any]) -> Iterable[dict[str, Any]]:
    inner = description.get("normalizers", description.get("pretokenizers"))
    if inner is None:
        yield description
    for part in inner or ():
        yield from _leaves(part)


def _spells_spaces(part: dict[str, Any], space: str | None) -> bool:
    match part:
        case {"type": "Prepend", "prepend": str(spelled)}:
            return spelled == space
        case {"type": "Replace", "pattern": {"String": " "}, "content": str(spelled)}:
            return spelled == space
    return False


def _only_cuts(part: dict[str, Any], space: str | None) -> bool:
    if part["type"] == "Metaspace":
        return bool(part["replacement"] == space)
    is_byte_level = part["type"] == "ByteLevel"
    keeps = part.get("behavior") != "Removed" and is_byte_level <= (space is None)
    return part["type"] in _CUTTING and keeps
