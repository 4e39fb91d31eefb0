"""Two releases of one code base, for `horsies workflows check`: `old` started the runs, `new` is to be deployed."""

from types import SimpleNamespace

from horsies import Horsies, TaskError, TaskResult
from tests.support.apps import UNREACHABLE, make_app

Number = TaskResult[int, TaskError]
NEW = "tests.support.releases:new"
SAME = "tests.support.releases:same"


def register_old(app: Horsies) -> SimpleNamespace:
    @app.task("price")
    def price(item: str) -> Number:
        return TaskResult(ok=len(item))

    @app.task("charge")
    def charge(amount: int, currency: str = "EUR") -> Number:
        return TaskResult(ok=amount)

    @app.task("items")
    def items(count: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(count)))

    @app.task("letter")
    def letter(to: str) -> Number:
        return TaskResult(ok=1)

    return SimpleNamespace(app=app, price=price, charge=charge, items=items, letter=letter)


def register_new(app: Horsies) -> None:
    """`letter` is gone, `price` returns text, and `charge` needs a customer."""

    @app.task("price")
    def price(item: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=item)

    @app.task("charge")
    def charge(amount: int, customer: str, currency: str = "EUR") -> Number:
        return TaskResult(ok=amount)

    @app.task("items")
    def items(count: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(count)))


new = make_app(UNREACHABLE)
register_new(new)
same = make_app(UNREACHABLE)
_same = register_old(same)
same.workflow("order", [_same.letter.node(node_id="letter")("one")])
