"""A source of the dashboard that keeps the plan of every statement which it runs."""

import json
from dataclasses import replace
from typing import Any

from horsies import PostgresConfig
from horsies_tui.data.postgres import PostgresSource


class ExplainingSource(PostgresSource):
    """`plans` has the plans of each statement by name. With `analyze` they tell what was read, too."""

    def __init__(self, config: PostgresConfig, *, analyze: bool = False) -> None:
        super().__init__(config)
        self.plans: dict[str, list[Any]] = {}
        options = "ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON" if analyze else "FORMAT JSON"
        self.statements = {
            **self.statements,
            **{
                f"explain {name}": replace(found, sql=f"EXPLAIN ({options}) {found.sql}")
                for name, found in self.statements.items()
            },
        }

    async def read(self, action: Any) -> Any:
        async def explained(fetch: Any) -> Any:
            async def run(name: str, *values: Any) -> Any:
                (row,) = await fetch(f"explain {name}", *values)
                self.plans.setdefault(name, []).append(json.loads(row["QUERY PLAN"])[0]["Plan"])
                return await fetch(name, *values)

            return await action(run)

        return await super().read(explained)
