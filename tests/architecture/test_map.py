"""docs/internals/map.md names files; a file that moved must be named by its new place."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs/internals/map.md"
PACKAGES = [path for path in (ROOT / "packages").glob("*/src") if path.is_dir()]
NAMED = sorted(set(re.findall(r"`((?:horsies|tests|docs)[\w/]*/[\w./]*)`", MAP.read_text())))


def test_it_names_files() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize("name", NAMED)
def test_the_named_file_exists(name: str) -> None:
    root = [ROOT] if name.startswith(("tests/", "docs/")) else PACKAGES
    assert any((place / name).exists() for place in root), f"{MAP.name} names {name}, which does not exist"
