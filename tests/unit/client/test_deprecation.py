"""What users of a deprecated name see: one warning per line of theirs, which names the way out."""

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from horsies import HorsiesDeprecationWarning
from tests.support.snippets import code_of

Verb = Callable[[], None]


def loaded(path: Path, name: str, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def old_verb(tmp_path: Path) -> Verb:
    """A verb of horsies that calls the helper through another of its functions."""
    module = loaded(
        tmp_path / "ours.py",
        "horsies.some_module",
        "from horsies.deprecation import deprecated\n"
        "def verb():\n    inner()\n"
        "def inner():\n    deprecated('verb()', since='1.2.0', instead='new_verb()', removed_in='2.0.0')\n",
    )
    return module.verb


def test_the_warning_says_since_when_what_instead_and_until_when(old_verb: Verb) -> None:
    told = r"^verb\(\) is deprecated since horsies 1\.2\.0 and will be removed in 2\.0\.0; use instead: new_verb\(\)$"
    with pytest.warns(HorsiesDeprecationWarning, match=told):
        old_verb()
    assert issubclass(HorsiesDeprecationWarning, DeprecationWarning)


def test_once_per_line_whatever_the_filter(old_verb: Verb) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            old_verb()
        assert len(told) == 1
        old_verb()
    assert len(told) == 2
    assert told[0].lineno != told[1].lineno


def test_it_points_at_the_user_not_at_horsies(old_verb: Verb, tmp_path: Path) -> None:
    theirs = loaded(tmp_path / "shop.py", "shop", "def use(verb):\n    return verb()\n")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        theirs.use(old_verb)
    assert [(Path(one.filename).name, one.lineno) for one in told] == [("shop.py", 2)]


def test_a_filter_may_turn_it_into_an_error_each_time(old_verb: Verb) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HorsiesDeprecationWarning)
        for _ in range(2):
            with pytest.raises(HorsiesDeprecationWarning):
                old_verb()


@pytest.mark.runs("docs/reference/support.md", "python")
def test_the_filter_of_the_support_page_finds_them(old_verb: Verb) -> None:
    (snippet,) = code_of("docs/reference/support.md", "python")
    with warnings.catch_warnings():
        exec(compile(snippet, "support.md", "exec"), {})
        with pytest.raises(HorsiesDeprecationWarning):
            old_verb()
