"""Sequences and groups change only by their own methods: the source of the core says so."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import engine.core
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup

ROOT = Path(engine.core.__file__).parent
OWNERS = {"sequence.py", "sequence_group.py"}
FIELDS = {field.name for owner in (Sequence, SequenceGroup) for field in fields(owner)}
# methods of lists, sets and arrays that change them
MUTATORS = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "reverse",
    "setdefault", "sort", "update",
}  # fmt: skip


def sources() -> list[str]:
    return sorted({str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py")} - OWNERS)


def changes(code: str) -> Iterator[str]:
    """Fields of sequences and groups that some code assigns to, or whose contents it changes.

    Fields of the same name that an object has itself (`self.status`) are its own.
    """
    for node in ast.walk(ast.parse(code)):
        targets: list[ast.expr]
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func.value] if node.func.attr in MUTATORS else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            yield ast.unparse(node)
            continue
        else:
            continue
        yield from filter(None, map(_changed_field, _flattened(targets)))


def _flattened(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flattened(target.elts)
        else:
            yield target


def _changed_field(target: ast.expr) -> str | None:
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    if not isinstance(target, ast.Attribute) or target.attr not in FIELDS:
        return None
    is_own = isinstance(target.value, ast.Name) and target.value.id == "self"
    return None if is_own else ast.unparse(target)


def test_only_their_own_modules_change_sequences_and_groups() -> None:
    found = {path: list(changes((ROOT / path).read_text("utf-8"))) for path in sources()}
    assert not {path: changed for path, changed in found.items() if changed}


@pytest.mark.parametrize(
    "code",
    [
        "sequence.row = 3",
        "sequence.num_in_flight -= 1",
        "first.row, other = 1, 2",
        "group.sequences[0].finish_reason = reason",
        "group.sequences[0] = sequence",
        "del group.deferred_aborts",
        "sequence.output.append(token)",
        "sequence.output += tokens",
        "group.reserved_rows.pop()",
        "fork.sequence.fork_row: int = -1",
        "setattr(sequence, name, 1)",
    ],
)
def test_the_rule_sees_every_kind_of_change(code: str) -> None:
    assert list(changes(code))


@pytest.mark.parametrize(
    "code", ["self.status = 1", "rows.append(sequence.row)", "x = group.status", "group.finish()"]
)
def test_the_rule_lets_readers_and_calls_pass(code: str) -> None:
    assert not list(changes(code))
