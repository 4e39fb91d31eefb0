# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""A paginator for tables of millions of rows: it never counts more than a few pages."""

from functools import cached_property
from typing import Any, Final

from django.core.paginator import Paginator

BOUND: Final = 2_000


class BoundedPaginator(Paginator):
    """Counts up to `BOUND` rows and shows so many: filters and the search lead to the others."""

    @cached_property
    def count(self) -> int:
        found: Any = self.object_list
        # as a subquery with a limit: the database stops there
        return found.order_by()[:BOUND].count()
