"""The C functions with their argument types; `source/` documents the layouts."""

import ctypes
import weakref
from collections.abc import Callable
from functools import partial

import torch

from kernels.cpu.build import load_library

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
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
        self.has_pairs = declare("has_pairs")() == 1
        self.has_tiles = declare("tiles_init")() == 0


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
