"""How rows of gate and up matrix lie, so that a thread of the first product has sums of both.

In the matrix instruction's result a thread that has a sum of one row has that of the row 8 below,
too. So 8 rows of the gate come first, then the same of the up matrix, and so on.
"""

from torch import Tensor

GATE_ROWS = 8


def gate_rows(inner: int) -> int:
    """Rows of the gate that lie together where there are so many."""
    return GATE_ROWS if inner % GATE_ROWS == 0 else 1


def in_groups(gate_up: Tensor) -> Tensor:
    """Put rows of gate and up matrix, which come by turns, in groups of `gate_rows`.

    Args:
        gate_up: [held, 2 * intermediate, ...], changed IN PLACE and returned.
    """
    count = gate_rows(gate_up.shape[1] // 2)
    for rows in gate_up if count > 1 else ():
        # [groups, rows of a group, gate or up, ...]
        pairs = rows.clone().unflatten(0, (-1, count, 2))
        rows.copy_(pairs.transpose(1, 2).flatten(0, 2))
    return gate_up
