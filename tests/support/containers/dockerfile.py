"""Reads a Dockerfile. An instruction that this module does not know is an error: nothing is passed over in silence."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """Of the exec form, and of the shell form as `/bin/sh -c`."""
        return json.loads(self.text) if self.text.startswith("[") else ["/bin/sh", "-c", self.text]


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: list[Instruction]


@dataclass(frozen=True)
class Healthcheck:
    command: list[str]
    interval_s: float = 30
    timeout_s: float = 30
    start_period_s: float = 0
    retries: int = 3


@dataclass
class Image:
    """What an image says of itself, beside its files."""

    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: Healthcheck | None = None
    ports: list[int] = field(default_factory=list)

    def take(self, one: Instruction) -> bool:
        """Apply an instruction that changes no file; False for the others."""
        match one.word:
            case "ENV":
                self.environment |= dict(item.split("=", 1) for item in shlex.split(one.text))
            case "USER":
                self.user = one.text
            case "ENTRYPOINT":
                self.entrypoint, self.command = one.arguments, []
            case "CMD":
                self.command = one.arguments
            case "HEALTHCHECK":
                self.healthcheck = healthcheck(one.text)
            case "EXPOSE":
                self.ports = [*self.ports, int(one.text)]
            case _:
                return False
        return True


def read(path: Path) -> dict[str, Stage]:
    """The stages by name, in their order."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
    stages: dict[str, Stage] = {}
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, keyword, name = rest.split()
            assert keyword == "AS", f"every stage has a name: {line}"
            current = stages[name] = Stage(name, base, [])
        else:
            known = ("RUN", "COPY", "WORKDIR", "ENV", "USER", "ENTRYPOINT", "CMD", "HEALTHCHECK", "EXPOSE")
            assert word in known, f"unknown instruction: {line}"
            current.instructions.append(Instruction(word, re.sub(r"\s+", " ", rest.strip())))
    return stages


def healthcheck(text: str) -> Healthcheck:
    options, _, command = text.partition("CMD ")
    given = dict(re.findall(r"--([a-z-]+)=(\S+)", options))
    return Healthcheck(
        json.loads(command),
        interval_s=seconds(given.get("interval", "30s")),
        timeout_s=seconds(given.get("timeout", "30s")),
        start_period_s=seconds(given.get("start-period", "0s")),
        retries=int(given.get("retries", 3)),
    )


def seconds(text: str) -> float:
    """Of a duration such as 40s or 1m30s."""
    parts = re.findall(r"(\d+)(ms|s|m|h)", text)
    assert "".join(number + unit for number, unit in parts) == text, f"not a duration: {text}"
    return sum(int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit] for number, unit in parts)
