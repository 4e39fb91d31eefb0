"""The output of a definition is the one that its class says: none is lost, and its type is the class's."""

from typing import Any, Generic, TypeVar

import pytest

from horsies import (
    Horsies,
    TaskError,
    TaskResult,
    UsageError,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowSpec,
)

T = TypeVar("T")


@pytest.mark.parametrize(
    ("attribute", "fix"), [("ouput", "write output = "), ("outputs", "write output = "), ("_again", "remove one of")]
)
def test_a_second_name_of_a_node_is_refused(app: Horsies, number: Any, attribute: str, fix: str) -> None:
    one = number.node()(1)
    with pytest.raises(WorkflowDefinitionError, match=f"{attribute}: is a second name of the node 'one'") as caught:
        type("Misspelt", (WorkflowDefinition,), {"one": one, attribute: one}, app=app)
    assert fix in str(caught.value)

    class Base(WorkflowDefinition[int], app=app):
        first = number.node()(1)
        output = first

    with pytest.raises(WorkflowDefinitionError, match="is a second name of the node 'first'"):

        class Extended(Base):
            second = Base.first


def test_the_output_returns_what_the_class_says(app: Horsies, number: Any) -> None:
    with pytest.raises(
        WorkflowDefinitionError, match=r"<TaskNode one> returns int, and the class is a WorkflowDefinition\[str\]"
    ):

        class Text(WorkflowDefinition[str], app=app):
            one = number.node()(1)
            output = one

    with pytest.raises(WorkflowDefinitionError, match="returns int"):

        class Nothing(WorkflowDefinition[None], app=app):
            one = number.node()(1)
            output = one

    class Built(WorkflowDefinition[str], app=app):
        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[str]:
            node = number.node()(n)
            return cls.workflow([node], output=node)

    with pytest.raises(WorkflowDefinitionError, match="returns int"):
        Built.build_with(1)


def test_outputs_that_fit(app: Horsies, number: Any) -> None:
    @app.task("flag")
    def flag() -> TaskResult[bool, TaskError]:
        return TaskResult(ok=True)

    class Same(WorkflowDefinition[int], app=app):
        one = number.node()(1)
        output = one

    class Narrower(WorkflowDefinition[int], app=app):
        one = flag.node()()
        output = one

    class Maybe(WorkflowDefinition[int | None], app=app):
        one = number.node()(1)

    class Untyped(WorkflowDefinition[Any], app=app):
        one = number.node()(1)

    class Unsaid(WorkflowDefinition, app=app):  # type: ignore[type-arg]
        one = number.node()(1)
        output = one

    class Quoted(WorkflowDefinition["int"], app=app):
        one = number.node()(1)

    class Variable(WorkflowDefinition[T], Generic[T], app=app):
        one = number.node()(1)

    assert [each.build().output is None for each in (Same, Narrower, Maybe, Untyped, Unsaid, Quoted, Variable)] == [
        False, False, True, True, False, True, True,
    ]  # fmt: skip


# -- how a definition is started -----------------------------------------------------------------------------------


def test_a_class_says_how_it_is_started(app: Horsies, number: Any) -> None:
    class Nightly(WorkflowDefinition[int], app=app):
        one = number.node()(1)
        output = one

    class Site(WorkflowDefinition[int], app=app):
        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[int]:
            node = number.node()(n)
            return cls.workflow([node], output=node)

    nightly: Any = Nightly
    site: Any = Site
    for name, hint in {"start": "start()", "send": "start()", "delay": "start()", "node": "node()"}.items():
        with pytest.raises(AttributeError) as caught:
            getattr(nightly, name)
        told = f"type object 'Nightly' has no attribute {name!r}: write Nightly.build().{hint}"
        assert str(caught.value) == told
    with pytest.raises(AttributeError, match=r"write await Nightly\.build\(\)\.start_async\(\)"):
        _ = nightly.start_async
    with pytest.raises(AttributeError, match=r"write Site\.build_with\(\.\.\.\)\.start\(\)"):
        site.start()
    assert not hasattr(Nightly, "start")
    with pytest.raises(UsageError, match=r"Nightly has no instances: .*Nightly\.build\(\)\.start\(\)"):
        nightly()
    with pytest.raises(UsageError, match=r"Site has no instances: .*Site\.build_with\(\.\.\.\)\.start\(\)"):
        site(5)
    with pytest.raises(UsageError, match=r"Nightly\.build\(\) takes no arguments: .*build_with"):
        nightly.build(1)
    with pytest.raises(UsageError, match=r"Site\.build\(\) takes no arguments: .*Site\.build_with\(\.\.\.\)"):
        site.build(n=1)


def test_a_node_may_have_the_name_of_a_hint(app: Horsies, number: Any) -> None:
    class Mail(WorkflowDefinition[int], app=app):
        start = number.node()(1)
        send = number.node()(2)
        output = send

    assert [wired.node_id for wired in Mail.build().wired] == ["start", "send"]
    assert Mail.start.node_id == "start"
