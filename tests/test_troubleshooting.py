"""Each message that ends a start, each code of an error and each line about trouble has a row."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

_LEVELS = ("warning", "error", "exception", "critical")
_EVENT = re.compile(r"^\| `(\w+)` \| (?:[^|]+) \| (?:[^|]+) \|$", re.MULTILINE)
_ROW = re.compile(r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_ANY = "…"
# words of a pattern or of a message that tell it from others
_LEAST_LETTERS = 6
# values of options, and what is said of a file or an application before the message itself: the
# page's text has them
_WITHOUT_ROW = {"… is …: ……", "…: …", "…, application …: …"}


def page() -> str:
    return (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def modules(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules that have one of the words: to parse all of them takes a second."""
    for folder in ("app", "engine", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in words):
                yield path, ast.parse(text)


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Yield the calls of functions or classes by their own names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def events() -> Iterator[str]:
    """Yield the first word of each line that is logged as a warning or worse."""
    for _, tree in modules("logger"):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == "logger"
                and node.func.attr in _LEVELS
            ):
                yield ast.literal_eval(node.args[0]).split(" ")[0]


def template(node: ast.expr) -> str:
    """Return the text of an expression, with `…` for all that is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return _ANY


def messages() -> dict[str, str]:
    """Return the text of each `ConfigError` and each last word, and where it stands."""
    found = {}
    for path, tree in modules("ConfigError", "_say"):
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for call in calls(tree, "ConfigError"):
            text, makers = template(call.args[0]), [*calls(call.args[0], *functions)]
            texts = [text]
            if text == _ANY:
                # a function of the module writes it
                texts = [each for maker in makers for each in returned(functions, maker)]
            assert texts, f"{path}:{call.lineno}"
            found.update(dict.fromkeys(texts, f"{path}:{call.lineno}"))
        for call in calls(tree, "_say"):
            if (text := template(call.args[0])).startswith("error: "):
                found[text] = f"{path}:{call.lineno}"
    return found


def returned(functions: dict[str, ast.FunctionDef], call: ast.Call) -> Iterator[str]:
    assert isinstance(call.func, ast.Name)
    for node in ast.walk(functions[call.func.id]):
        if isinstance(node, ast.Return) and node.value is not None:
            yield template(node.value)


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the messages of the first table, and what they match."""
    part = page().partition("## Errors that clients get")[0]
    for cell, *others in _ROW.findall(part):
        assert all(other.strip() for other in others)
        for text in re.findall("`(.+?)`", cell):
            yield text, re.compile(".*".join(map(re.escape, text.split(_ANY))), re.DOTALL)


def codes() -> Iterator[str]:
    """Yield the code of each error that a client may get."""
    for _, tree in modules("code", "HttpError"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for line in node.body:
                    if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
                        yield ast.literal_eval(line.value)
            if isinstance(node, ast.keyword) and node.arg == "code":
                yield from strings(node.value)
        for call in calls(tree, "HttpError"):
            yield from strings(call.args[1]) if len(call.args) > 1 else ()


def strings(node: ast.expr) -> Iterator[str]:
    choices = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    for each in choices:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def test_each_message_that_ends_a_start_has_a_row_and_each_row_a_message() -> None:
    found, rows = messages(), list(patterns())
    assert len(found) > 100
    assert found.keys() >= _WITHOUT_ROW
    # a row is about something
    vague = [text for text, _ in rows if sum(map(str.isalpha, text)) < _LEAST_LETTERS]
    assert not vague
    missing = {
        text: place
        for text, place in found.items()
        if text not in _WITHOUT_ROW and not any(pattern.fullmatch(text) for _, pattern in rows)
    }
    assert not missing
    unused = [text for text, pattern in rows if not any(map(pattern.fullmatch, found))]
    assert not unused


def test_each_code_of_an_error_has_a_row_and_each_row_a_code() -> None:
    part = page().partition("## Errors that clients get")[2].partition("## Lines in the log")[0]
    rows = [cell.strip("`") for cell, *_ in _ROW.findall(part)]
    assert rows == sorted(set(rows))
    assert set(rows) == set(codes())


def test_each_line_of_trouble_has_a_row_and_each_row_a_line() -> None:
    rows = _EVENT.findall(page().partition("## Lines in the log")[2])
    assert rows == sorted(set(rows))
    assert set(rows) == set(events())
