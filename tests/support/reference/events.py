"""events.md: the classes of `horsies/events.py`, each with its docstring and its fields."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping

from horsies import events
from tests.support.reference import markdown as md

EVENTS = """\
# Events

What `app.on_event` can tell you of ([how to use it](../guides/workers.md#react-to-events)). Import the classes from
`horsies.events`. Each is a frozen dataclass; times are in seconds. A worker creates events in its parent process, so
they also tell of child processes that crash. `horsies scheduler` has `ScheduleFired`, `DatabaseLost` and
`DatabaseRegained`.

An event tells what a worker has seen, once, when it has seen it. It is not a record: a worker that is killed tells
nothing of what it was doing, and a slow handler loses events. What became of a task is in its row.
"""


def events_page() -> str:
    """Sections and classes in the order of the module."""
    source = inspect.getsource(events)
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    sections = {
        number: match[1]
        for number, line in enumerate(source.splitlines(), 1)
        if (match := re.fullmatch(r"# -- (.+?) -+", line))
    }
    parts = [md.note("`horsies/events.py`"), EVENTS]
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for number in [number for number in sections if number < node.lineno]:
            heading = sections.pop(number)
            parts.append(f"\n## {heading[0].upper()}{heading[1:]}\n")
        parts.append(f"\n### {node.name}\n\n{md.one_line(ast.get_docstring(node))}\n")
        fields = list(_fields(node, aliases))
        if fields:
            parts.append("\n" + md.table(("Field", "Type", "Meaning"), fields))
    return "".join(parts)


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The words of each Literal that has a name."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            words = ast.literal_eval(node.value.slice)
            yield ast.unparse(node.targets[0]), ", ".join(f'`"{word}"`' for word in words)


def _fields(node: ast.ClassDef, aliases: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning: a string after a field documents it."""
    for place, line in enumerate(node.body):
        if not isinstance(line, ast.AnnAssign):
            continue
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        meaning = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = md.one_line(str(after.value.value))
        kind = ast.unparse(line.annotation)
        yield f"`{ast.unparse(line.target)}`", aliases.get(kind, f"`{kind}`"), meaning
