"""The fenced blocks of the documentation, and which test runs each.

A block is run by a test that says so, `@pytest.mark.runs("docs/guides/sql.md", "sql")`, by a recipe of `RECIPES`, or by
tests/integration/test_docs_commands.py if all its lines are commands of an operator. Any other block has a comment
before it, which no reader of the rendered page sees: `<!-- not run: why -->`.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"docs/tutorials/first-day.md": "diary"}
"""Pages that a recipe of the justfile runs as a whole."""
REASONS = {("docs/reference/benchmarks.md", "just bench "): "takes minutes to hours, and installs the peers"}
"""Why blocks of generated pages are not run, by page and beginning."""
GENERATED = "<!-- Written by `just reference`"
"""Signatures, usages and examples of these pages come from the code, and tests/integration/test_help.py parses every
example; what counts there are the Python blocks of their prose."""
OPERATOR = {
    "check", "doctor", "tasks", "quarantine", "stale", "workers", "queues", "limits", "keys", "schedules", "workflows",
    "version", "init", "capacity",
}  # fmt: skip
"""Commands that end by themselves and need a database at most."""
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]*?) -->\n\n?)?"
    r"^(?P<fence>```+|~~~+)(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=fence)[ \t]*$",
    re.M | re.S,
)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `reason` says why it is not run."""

    page: str
    number: int
    language: str
    title: str | None
    code: str
    reason: str | None

    def __str__(self) -> str:
        first = self.code.strip().splitlines()[0] if self.code.strip() else ""
        return f"{self.page}, block {self.number} ({self.language or 'no language'}): {first[:60]}"

    def is_chosen_by(self, selector: str) -> bool:
        """By `all`, `output`, or a language, which `titled` or `untitled` may follow."""
        if selector == "all":
            return True
        if selector == "output":
            return self.language in ("", "text")
        language, _, which = selector.partition(" ")
        return self.language == language and which in ("", "titled" if self.title else "untitled")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    text = page.read_text()
    for number, match in enumerate(_BLOCK.finditer(text), 1):
        language = re.split(r"[ {]", match["info"].strip(), maxsplit=1)[0]
        if text.startswith(GENERATED) and language != "python":
            continue
        title = _TITLE.search(match["info"])
        name = page.relative_to(ROOT).as_posix()
        known = (why for (of, start), why in REASONS.items() if of == name and match["code"].startswith(start))
        reason = match["reason"] or next(known, None)
        found.append(Block(name, number, language, title[1] if title else None, match["code"], reason))
    return found


def code_of(page: str, selector: str) -> list[str]:
    return [block.code for block in blocks_of(ROOT / page) if block.is_chosen_by(selector)]


def operator_commands(block: Block) -> list[list[str]] | None:
    """The arguments of each `horsies ...` line, if all lines are commands of an operator and none of them says that it
    cannot be run here."""
    if block.reason or block.language not in ("sh", "bash"):
        return None
    found: list[list[str]] = []
    for line in block.code.splitlines():
        # what a shell would do with the output is not part of the command
        command = re.split(r"\s\|\|?\s|\s>\s", re.sub(r"\s+#\s.*$", "", line), maxsplit=1)[0]
        words = shlex.split(command)
        if words[:1] == ["horsies-migrate"]:
            words = ["horsies", "migrate", *words[1:]]
        if len(words) < 2 or words[0] != "horsies" or words[1] not in {*OPERATOR, "migrate"}:
            return None
        found.append(words[1:])
    return found


def declared() -> Iterator[tuple[str, str, str]]:
    """Every `@pytest.mark.runs(page, *selectors)` of the suite: the test, the page, a selector."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.runs" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.runs":
                    page, *selectors = (ast.literal_eval(argument) for argument in decorator.args)
                    yield from ((f"{path.name}::{node.name}", page, selector) for selector in selectors)
