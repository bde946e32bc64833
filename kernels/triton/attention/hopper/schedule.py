"""What each program of prefill attention does, in turns; all its warps follow the same items."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.triton.attention.hopper.gluon_names import aggregate

# rows of the products of a group of warps
ROWS = gl.constexpr(64)


@aggregate
class Schedule:
    """Items of all programs: each is a part of a tile of queries, for heads that are packed.

    Attributes:
        tiles: see `kernels.triton.attention.attention_work.AttentionWork`.
        num_items: of all tiles, heads and parts.
        num_parts: of a tile, each as many tokens as the groups of a program have rows for.
    """

    tiles: gl.tensor
    num_items: gl.tensor
    num_parts: gl.tensor

    @gluon.constexpr_function
    def __init__(self, tiles, num_items, num_parts):
        self.tiles = tiles
        self.num_items = num_items
        self.num_parts = num_parts


@aggregate
class Item:
    """Part of a tile of queries, for heads that are packed.

    Attributes:
        row: of the batch.
        first_head, first_token: of the queries.
        position: of the first token in its sequence.
        num_tokens: not positive where the tile has fewer or the turn has no item.
    """

    row: gl.tensor
    first_head: gl.tensor
    first_token: gl.tensor
    position: gl.tensor
    num_tokens: gl.tensor

    @gluon.constexpr_function
    def __init__(self, row, first_head, first_token, position, num_tokens):
        self.row = row
        self.first_head = first_head
        self.first_token = first_token
        self.position = position
        self.num_tokens = num_tokens


@gluon.jit
def num_turns(schedule):
    """Turns of every program."""
    return gl.cdiv(schedule.num_items, gl.num_programs(0))


@gluon.jit
def load_item(schedule, turn, HEADS: gl.constexpr, PACKED: gl.constexpr, GROUPS: gl.constexpr):
    """The item of this program in a turn.

    Costs fall from item to item; in odd turns programs take them backwards, so all have as much.
    """
    PART_LEN: gl.constexpr = GROUPS * ROWS // PACKED
    num_items, num_parts = schedule.num_items, schedule.num_parts
    program, num_programs = gl.program_id(0), gl.num_programs(0)
    place = gl.where(turn % 2 == 0, program, num_programs - 1 - program)
    item = turn * num_programs + place
    # the last part first, which sees the most
    first = (num_parts - 1 - item % num_parts) * PART_LEN
    first_head = item // num_parts % (HEADS // PACKED) * PACKED
    record = schedule.tiles + item // num_parts // (HEADS // PACKED) * 4
    row = gl.load(record, item < num_items, other=0)
    first_token = gl.load(record + 1, item < num_items, other=0) + first
    num_tokens = gl.load(record + 2, item < num_items, other=0) - first
    position = gl.load(record + 3, item < num_items, other=0) + first
    return Item(row, first_head, first_token, position, gl.minimum(num_tokens, PART_LEN))
