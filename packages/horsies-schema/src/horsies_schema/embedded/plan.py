"""The one message from the process that starts a server to its keeper: what to start, where, and as whom."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from horsies_schema.embedded.account import Account
from horsies_schema.embedded.errors import EmbeddedError
from horsies_schema.embedded.layout import Layout

START_SECONDS: Final = 60.0

# Ours to choose: they decide who can connect, and where a second process finds the server.
_RESERVED: Final = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "port",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)
_SETTING_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the keeper needs; it reads no environment and looks for nothing itself."""

    directory: str
    bin_dir: str
    account: Account | None
    temporary: bool
    port: int | None
    settings: dict[str, str]

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.directory))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        account = fields.pop("account")
        if account is not None:
            account = Account(account["name"], account["uid"], account["gid"], tuple(account["groups"]))
        return Plan(account=account, **fields)


def checked_settings(settings: Mapping[str, str] | None) -> dict[str, str]:
    """The user's settings, or an error naming every one that cannot be passed on."""
    given = dict(settings or {})
    problems = [f"{name} is chosen by the embedded server" for name in given if name.lower() in _RESERVED]
    problems += [f"{name!r} is not a setting's name" for name in given if not _SETTING_NAME.fullmatch(name)]
    problems += [f"the value of {name} contains a NUL" for name, value in given.items() if "\0" in value]
    if problems:
        raise EmbeddedError(f"settings of the embedded server: {'; '.join(problems)}")
    return given


def checked_port(port: int | None) -> int | None:
    """None for the unix socket, 0 for a free loopback port, or that port."""
    if port is not None and not 0 <= port <= 65535:
        raise EmbeddedError(f"port {port} of the embedded server is not between 0 and 65535")
    return port
