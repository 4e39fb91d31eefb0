"""Each name of the original horsies can be imported, or its ImportError says what to use instead. The guide has all."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import horsies
from horsies import former_names
from tests.support.names_of_0x import NAMES

GUIDE = Path(__file__).parents[3] / "docs" / "moving" / "from-horsies-0.md"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_known_or_explained(name: str) -> None:
    if name in horsies.__all__ or name == "__version__":
        assert getattr(horsies, name) is not None
    else:
        with pytest.raises(ImportError, match=f"'{name}' was a name of horsies 0.x; use instead: ..."):
            exec(f"from horsies import {name}")
        with pytest.raises(AttributeError, match=f"'{name}' was a name of horsies 0.x; use instead: ..."):
            getattr(horsies, name)
    assert f"`{name}`" in GUIDE.read_text()


def test_other_unknown_names_are_refused_as_ever() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from horsies import nothing")
    assert not hasattr(horsies, "nothing")


def test_names_that_are_explained_load_nothing_else() -> None:
    code = (
        "import sys, horsies\ntry:\n    from horsies import Ok\nexcept ImportError:\n"
        "    print('pydantic' in sys.modules, 'horsies.app' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "False False\n"


def test_names_with_another_name_here_are_the_same_objects() -> None:
    assert former_names.WorkflowTaskStatus is horsies.NodeStatus
    assert former_names.TaskAttemptOutcome is horsies.AttemptOutcome
    assert former_names.WorkflowValidationError is horsies.WorkflowDefinitionError
    assert former_names.WORKFLOW_TASK_TERMINAL_STATES is horsies.NODE_TERMINAL_STATES
    assert {*former_names.__all__} <= {*horsies.__all__, *NAMES}
    gone = importlib.import_module("horsies._gone_names").GONE
    assert not gone.keys() & {*horsies.__all__}
    assert gone.keys() <= {*NAMES}
