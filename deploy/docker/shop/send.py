"""Sends a task and prints its result: `docker compose run --rm client`."""

import sys

from shop.tasks import add


def main() -> int:
    result = add.send(2, 3).get(timeout_ms=60_000)
    print(result)
    return 0 if result.is_ok() else 1


if __name__ == "__main__":
    sys.exit(main())
