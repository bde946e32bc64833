"""The dtypes that kernels are tested in, and how near their results must come."""

import torch
from torch import Tensor

# the interpreter multiplies bfloat16 matrices wrongly, so it is left to the GPU
DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():
    DTYPES.append(torch.bfloat16)

# for bits that must not depend on an arrangement: the interpreter adds up alike in all dtypes, and
# float32 shows what float16 rounds away
DTYPES_OF_BITS = DTYPES if torch.cuda.is_available() else DTYPES[:1]

# the spacing of numbers near 1; that of float32 is for sums of a thousand terms
_ROUNDING = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def assert_near(actual: Tensor, expected: Tensor, of_float32: float = 2.0**-18) -> None:
    """Both of one dtype, and at most two roundings apart; of float32 as near as is said."""
    rounding = of_float32 if expected.dtype == torch.float32 else _ROUNDING[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=rounding, atol=rounding)
