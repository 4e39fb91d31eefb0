"""The configuration of a node, as docs/operations/failover.md recommends it, with short times."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.ha.network import Network, Place

SYNC = {"synchronous_mode": True, "synchronous_mode_strict": True}
"""A commit waits for a standby, always: without a standby the leader stops accepting writes."""
ASYNC = {"synchronous_mode": False}


def configuration(network: Network, name: str, mode: str, data: Path, programs: Path) -> str:
    """The file of one node. JSON is YAML."""
    place: Place = network.places[name]
    settings: Mapping[str, Any] = {
        "scope": "horsies",
        "name": name,
        "restapi": {
            "listen": f"{place.host}:{place.rest_port}",
            "connect_address": f"{place.host}:{place.rest_port}",
        },
        "etcd3": {"hosts": [f"{network.etcd_host}:{network.etcd_ports[0]}"]},
        "bootstrap": {
            "dcs": {
                # the smallest that Patroni accepts for ttl: a frozen leader is replaced after it
                "ttl": 20,
                "loop_wait": 2,
                "retry_timeout": 5,
                "maximum_lag_on_failover": 1_048_576,
                # a leader whose server has died is replaced at once, and not restarted first
                "primary_start_timeout": 0,
                **(SYNC if mode == "sync" else ASYNC),
                "postgresql": {
                    "use_pg_rewind": True,
                    "use_slots": True,
                    "parameters": {
                        "max_connections": 100,
                        "wal_log_hints": "on",
                        "wal_keep_size": "256MB",
                        "shared_buffers": "64MB",
                        # a session of a client that vanished gives its locks back
                        "tcp_user_timeout": "10s",
                        "client_connection_check_interval": "5s",
                        "wal_sender_timeout": "5s",
                        "wal_receiver_timeout": "5s",
                    },
                },
            },
            "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"],
        },
        "postgresql": {
            "listen": f"{place.host}:{place.port}",
            "connect_address": f"{place.host}:{place.port}",
            "data_dir": str(data),
            "bin_dir": str(programs),
            "authentication": {
                "superuser": {"username": "postgres"},
                "replication": {"username": "replicator"},
                "rewind": {"username": "postgres"},
            },
            "parameters": {"unix_socket_directories": str(data.parent)},
            "pg_hba": [
                "local all all trust",
                "host all all 0.0.0.0/0 trust",
                "host replication all 0.0.0.0/0 trust",
            ],
        },
        "watchdog": {"mode": "off"},
    }
    return json.dumps(settings, indent=1)
