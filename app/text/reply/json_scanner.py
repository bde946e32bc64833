"""Follows a JSON object character by character, without holding it."""

import re

_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_SCALAR_STARTS = "-0123456789tfn"
_SPACE = " \t\n\r"
_ESCAPES = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
# deeper ones are refused in requests, too, when a client sends the call back
_MAX_DEPTH = 30


class JsonScanner:
    """Reads one JSON object or list, strictly.

    Attributes:
        depth: objects and lists that are open.
        is_complete: whether the last one has been closed. Nothing may be fed after that.
        is_broken: whether what has come cannot become JSON. Nothing may be fed after that.
        key: of the member of the outermost object that is being read, as it is spelled.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.is_broken = False
        self.key = ""
        self._read = self._value
        self._stack: list[str] = []
        self._token = ""
        self._is_key = False

    @property
    def depth(self) -> int:
        return len(self._stack)

    @property
    def in_value(self) -> bool:
        """Whether the value of a member of the outermost object has begun and not ended."""
        in_text = self._read in (self._string, self._escape, self._unicode) and not self._is_key
        return self.depth > 1 or (self.depth == 1 and (in_text or self.in_scalar))

    @property
    def in_scalar(self) -> bool:
        """Whether a number or a word is read, which ends at the character behind it."""
        return self._read == self._scalar

    def feed(self, char: str) -> None:
        """Read one character."""
        self._read(char)

    def _value(self, char: str) -> None:
        if char in _SPACE:
            return
        if char in "{[" and self.depth < _MAX_DEPTH:
            self._stack.append(char)
            self._read = self._first_key if char == "{" else self._first_value
        elif not self._stack:
            self.is_broken = True
        elif char == '"':
            self._begin_string(is_key=False)
        elif char in _SCALAR_STARTS:
            self._token, self._read = char, self._scalar
        else:
            self.is_broken = True

    def _first_value(self, char: str) -> None:
        if char == "]":
            self._close(char)
        else:
            self._read = self._value
            self._value(char)

    def _first_key(self, char: str) -> None:
        if char == "}":
            self._close(char)
        else:
            self._member(char)

    def _member(self, char: str) -> None:
        if char == '"':
            self._begin_string(is_key=True)
        elif char not in _SPACE:
            self.is_broken = True

    def _begin_string(self, *, is_key: bool) -> None:
        self._token, self._is_key, self._read = "", is_key, self._string

    def _string(self, char: str) -> None:
        if char == '"':
            if self._is_key and self.depth == 1:
                self.key = self._token
            self._read = self._colon if self._is_key else self._after
            return
        if char == "\\":
            self._read = self._escape
        elif char < " ":
            self.is_broken = True
        if self._is_key:
            self._token += char

    def _escape(self, char: str) -> None:
        self._token, self._read = self._token + char, self._string
        if char == "u":
            self._num_hex, self._read = 0, self._unicode
        elif char not in _ESCAPES:
            self.is_broken = True

    def _unicode(self, char: str) -> None:
        self._num_hex += 1
        self.is_broken = char not in _HEX
        if self._num_hex == 4:
            self._read = self._string

    def _colon(self, char: str) -> None:
        if char == ":":
            self._read = self._value
        elif char not in _SPACE:
            self.is_broken = True

    def _scalar(self, char: str) -> None:
        if char in _SPACE or char in ",]}":
            self.is_broken = _SCALAR.fullmatch(self._token) is None
            self._read = self._after
            if not self.is_broken:
                self._after(char)
        else:
            self._token += char

    def _after(self, char: str) -> None:
        if char in "]}":
            self._close(char)
        elif char == ",":
            self._read = self._member if self._stack[-1] == "{" else self._value
        elif char not in _SPACE:
            self.is_broken = True

    def _close(self, char: str) -> None:
        if self._stack[-1] + char not in ("{}", "[]"):
            self.is_broken = True
            return
        self._stack.pop()
        self.is_complete = not self._stack
        self._read = self._after
