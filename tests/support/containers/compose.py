"""Reads compose.yaml: services with their variables filled in, in the order in which they depend on each other."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.support.containers.dockerfile import Healthcheck, seconds

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<mark>:\?|:-)(?P<rest>[^}]*))?\}")


@dataclass(frozen=True)
class Service:
    name: str
    given: Mapping[str, Any]

    @property
    def target(self) -> str | None:
        return self.given["build"]["target"] if "build" in self.given else None

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.given.get("environment", {}).items()}

    @property
    def depends_on(self) -> dict[str, str]:
        return {name: one["condition"] for name, one in self.given.get("depends_on", {}).items()}

    @property
    def grace_s(self) -> float:
        return seconds(self.given.get("stop_grace_period", "10s"))

    @property
    def tmpfs(self) -> dict[str, str]:
        return dict(item.split(":", 1) for item in self.given.get("tmpfs", []))

    @property
    def is_optional(self) -> bool:
        return bool(self.given.get("profiles"))

    @property
    def healthcheck(self) -> Healthcheck | None:
        if (given := self.given.get("healthcheck")) is None:
            return None
        assert given["test"][0] == "CMD", given
        return Healthcheck(
            given["test"][1:], interval_s=seconds(given.get("interval", "30s")), retries=given.get("retries", 3)
        )


def read(path: Path, variables: Mapping[str, str]) -> dict[str, Service]:
    document = YAML(typ="safe").load(_filled(path.read_text(), variables))
    return {name: Service(name, given) for name, given in document["services"].items()}


def in_order(services: Mapping[str, Service]) -> list[Service]:
    """Those that start without a profile, each after what it depends on."""
    found: list[Service] = []

    def add(name: str) -> None:
        if services[name] not in found:
            for other in services[name].depends_on:
                add(other)
            found.append(services[name])

    for name, service in services.items():
        if not service.is_optional:
            add(name)
    return found


def _filled(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        found = variables.get(match["name"])
        if found:
            return found
        assert match["mark"] != ":?", f"{match['name']}: {match['rest']}"
        return match["rest"] or ""

    return _VARIABLE.sub(value, text)
