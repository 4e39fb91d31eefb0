"""`just db-up`: the embedded server in its default directory, migrated, until Ctrl-C."""

import signal

import horsies_schema
from horsies_schema import embedded


def main() -> None:
    url = embedded.resolve("embedded://")
    revision = horsies_schema.upgrade(url)
    print(f"PostgreSQL is up, schema at revision {revision}\n\n  export HORSIES_DATABASE_URL='{url}'\n\nCtrl-C ends it")  # noqa: T201
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
