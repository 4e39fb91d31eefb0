"""Every fenced block of the documentation is run by the suite, or says why it is not."""

import re
import sys
from collections import Counter

from tests.support.snippets import RECIPES, ROOT, Block, blocks_of, declared, operator_commands, pages

BLOCKS = [block for page in pages() for block in blocks_of(page)]


def _runners() -> dict[Block, list[str]]:
    found: dict[Block, list[str]] = {block: [] for block in BLOCKS}
    for test, page, selector in declared():
        for block in BLOCKS:
            if block.page == page and block.is_chosen_by(selector):
                found[block].append(test)
    for block, runners in found.items():
        if block.page in RECIPES:
            runners.append(f"just {RECIPES[block.page]}")
        if operator_commands(block) is not None:
            runners.append("test_docs_commands.py")
    return found


def test_every_block_is_run_or_says_why_not() -> None:
    runners = _runners()
    silent = [str(block) for block in BLOCKS if not runners[block] and not block.reason]
    run, marked = sum(map(bool, runners.values())), sum(1 for block in BLOCKS if not runners[block] and block.reason)
    by_language = Counter(block.language or "output" for block in BLOCKS if not runners[block])
    sys.stdout.write(
        f"{len(BLOCKS)} blocks: {run} are run, {marked} say why not, {len(silent)} do neither; not run: {by_language}\n"
    )
    assert silent == [], "run them in a test with @pytest.mark.runs, or write <!-- not run: why --> before them"


def test_no_block_that_is_run_says_that_it_is_not() -> None:
    assert [str(block) for block, runners in _runners().items() if runners and block.reason] == []


def test_every_declaration_chooses_a_block() -> None:
    vain = [
        (test, page, selector)
        for test, page, selector in declared()
        if not any(block.page == page and block.is_chosen_by(selector) for block in BLOCKS)
    ]
    assert vain == []
    justfile = (ROOT / "justfile").read_text()
    assert [recipe for recipe in RECIPES.values() if not re.search(rf"^{recipe}\b.*:", justfile, re.M)] == []


def test_most_blocks_are_run() -> None:
    """Marking is the exception."""
    run = sum(map(bool, _runners().values()))
    assert run / len(BLOCKS) > 0.7
