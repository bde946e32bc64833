"""The C functions with their argument types; `source/` documents the layouts."""

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from kernels.cpu.build import load_library

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
# kernels that may fail
_WITH_STATUS = {"attention", "filter"}
_DEFINITIONS = {torch.bfloat16: ("ELEMENT_BF16",), torch.float32: ()}


class Team(ctypes.c_void_p):
    """Threads that share the work of kernels; they end with the last that holds the object."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        """Start them.

        Args:
            num_threads: with the one that calls.

        Raises:
            MemoryError: if there is no memory for them.
        """
        super().__init__()
        if library.team_open(ctypes.byref(self), _INT(num_threads)):
            raise MemoryError(f"no memory for {num_threads} compute threads")
        ended = weakref.finalize(self, library.team_close, ctypes.c_void_p(self.value))
        # those of a process that ends end with it; a fork of it has none
        ended.atexit = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel.

    Attributes:
        kernel: its address.
        has_status: whether it returns 0 where it has done its work.
        whole, real: arguments that are addresses and integers, and the others, in their order.
        are_addresses: which of `whole` are.
    """

    kernel: int
    has_status: bool
    whole: list[int]
    are_addresses: list[bool]
    real: list[float]


class Library:
    """C kernels for one element type. Arguments are addresses, integers and floats.

    Called by one thread at a time; the others are of its own.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int = 1) -> None:
        self.num_threads = num_threads
        team = Team(library, num_threads)

        def declare(name: str, *arguments: type) -> Callable[..., int]:
            function = library[name]
            function.argtypes, function.restype = arguments, _INT
            return function

        def bind(name: str, *arguments: type) -> Callable[..., int]:
            return partial(declare(name, _POINTER, *arguments), team)

        self.rms_norm = bind("rms_norm", *[_POINTER] * 3, _INT, _INT, _FLOAT, _INT)
        self.add_rms_norm = bind("add_rms_norm", *[_POINTER] * 4, _INT, _INT, _FLOAT, _INT)
        self.layer_norm = bind("layer_norm", *[_POINTER] * 4, _INT, _INT, _FLOAT)
        self.add_layer_norm = bind("add_layer_norm", *[_POINTER] * 5, _INT, _INT, _FLOAT)
        self.gelu = bind("gelu", *[_POINTER] * 2, _INT, _INT)
        self.gelu_mul = bind("gelu_mul", *[_POINTER] * 2, _INT, _INT)
        self.kv_write = bind("kv_write", *[_POINTER] * 4, *[_INT] * 6)
        self.silu_mul = bind("silu_mul", *[_POINTER] * 2, _INT, _INT)
        self.rope_write = bind("rope_write", *[_POINTER] * 6, *[_INT] * 6)
        self.norm_rope_write = bind("norm_rope_write", *[_POINTER] * 8, *[_INT] * 6, _FLOAT, _INT)
        self.mean_squares = bind("mean_squares", *[_POINTER] * 2, *[_INT] * 4)
        scoring = _FLOAT, _FLOAT, _INT, _INT, _POINTER
        self.attention = bind("attention", *[_POINTER] * 6, *[_INT] * 7, *scoring)
        self.argmax = bind("argmax", *[_POINTER] * 2, *[_INT] * 2)
        self.draw = bind("draw", *[_POINTER] * 5, *[_INT] * 2)
        self.filter = bind("filter", *[_POINTER] * 4, *[_INT] * 2)
        self.linear_pack = declare("linear_pack", *[_POINTER] * 2, *[_INT] * 2)
        self.linear = bind("linear", *[_POINTER] * 4, *[_INT] * 5)
        self.run_calls = bind("run_calls", _POINTER, _INT)
        self.can_run_calls = declare("can_run_calls")() == 1
        self.has_pairs = declare("has_pairs")() == 1
        self.has_tiles = declare("tiles_init")() == 0

    @contextmanager
    def noting(self) -> Iterator[list[Call]]:
        """Yield a list that gets the calls of kernels while this lasts; they do their work, too."""
        calls: list[Call] = []
        kernels = {name: it for name, it in vars(self).items() if isinstance(it, partial)}

        def noted(name: str, kernel: "partial[int]") -> Callable[..., int]:
            function = kernel.func
            address = ctypes.cast(function, _POINTER).value or 0  # type: ignore[arg-type]
            types = function.argtypes[1:]  # type: ignore[attr-defined]

            def call(*arguments: float | None) -> int:
                given = [(it or 0, kind) for it, kind in zip(arguments, types, strict=True)]
                calls.append(
                    Call(
                        kernel=address,
                        has_status=name in _WITH_STATUS,
                        whole=[int(it) for it, kind in given if kind is not _FLOAT],
                        are_addresses=[kind is _POINTER for _, kind in given if kind is not _FLOAT],
                        real=[float(it) for it, kind in given if kind is _FLOAT],
                    )
                )
                return kernel(*arguments)

            return call

        for name, kernel in kernels.items():
            setattr(self, name, noted(name, kernel))
        try:
            yield calls
        finally:
            vars(self).update(kernels)


def load_kernels(
    dtype: torch.dtype, *, num_threads: int = 1, portable: bool = False
) -> Library | None:
    """Load the kernels of float32 or bfloat16; None if they cannot be compiled here.

    Args:
        dtype: of the elements.
        num_threads: that compute; results have the same bits with any number.
        portable: whether to leave out the parts written for AVX2, AVX-512 and AMX.
    """
    library = load_library(_DEFINITIONS[dtype] + ("PORTABLE",) * portable)
    return Library(library, num_threads) if library else None
