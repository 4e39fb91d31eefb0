"""Pieces of Markdown that all generated pages are made of."""

import inspect
import re
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by `just reference`: edit {source} instead. -->\n\n"


def note(source: str) -> str:
    return NOTE.format(source=source)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def paragraphs(text: str | None) -> str:
    """A docstring as Markdown: its paragraphs unwrapped, its indented examples as code."""
    kept: list[str] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        if part.startswith("    "):
            code = inspect.cleandoc("\n" + part)
            if kept and kept[-1].endswith("\n```"):
                kept[-1] = f"{kept[-1].removesuffix('```')}\n{code}\n```"
            else:
                kept.append(f"```text\n{code}\n```")
        elif part.lstrip().startswith(("- ", "* ")):
            kept.append(re.sub(r"\n +(?![-*] )", " ", part))
        else:
            kept.append(one_line(part))
    return "\n\n".join(part for part in kept if part)


def cell(text: str) -> str:
    """A text in a cell of a table: on one line, without a bar that would end the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", one_line(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell(one) for one in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`"


def sections(text: str) -> tuple[str, dict[str, str]]:
    """The text before the first heading of the second level, and the text below each such heading."""
    head, *rest = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return head.strip(), {title: body.strip() for title, body in zip(rest[::2], rest[1::2], strict=True)}
