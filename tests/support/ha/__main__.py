"""`just failover`: switch-overs, crashes, freezes and cuts of the leader under load, and what they cost."""

import argparse
import shutil
import signal
import sys
from pathlib import Path

from tests.support import places
from tests.support.ha.cluster import missing
from tests.support.ha.run import plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="just failover", description=__doc__)
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--switchovers", type=int, default=20, metavar="N")
    parser.add_argument("--crashes", type=int, default=20, metavar="N", help="SIGKILL of the leader's server")
    parser.add_argument(
        "--lagged-crashes", type=int, default=0, metavar="N",
        help="the same when the standbys have missed the last commits (as root, with --mode async)",
    )  # fmt: skip
    parser.add_argument("--freezes", type=int, default=2, metavar="N", help="SIGSTOP of the leader's whole node")
    parser.add_argument("--cuts", type=int, default=2, metavar="N", help="the leader's cable is taken down (as root)")
    parser.add_argument("--seed", type=int, default=0, help="the order of the faults")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep logs, ledgers and evidence there")
    options = parser.parse_args()
    if reason := missing():
        say(reason)
        return 2
    if options.lagged_crashes and options.mode == "sync":
        parser.error("--lagged-crashes needs --mode async: without a standby that answers nothing is acknowledged")
    counts = {
        "switch-over": options.switchovers, "crash": options.crashes, "lagged crash": options.lagged_crashes,
        "freeze": options.freezes, "cut": options.cuts,
    }  # fmt: skip
    folder = places.directory("horsies-ha-")
    good = False
    try:
        verdict = run(plan(counts, options.seed), options.mode, folder, say)
        good = verdict.is_good
        for line in verdict.lines():
            say(line)
    finally:
        if options.keep is not None:
            shutil.copytree(
                folder,
                options.keep,
                ignore=shutil.ignore_patterns("data", "etcd", "patroni", ".s.*"),
                dirs_exist_ok=True,
            )
            say(f"logs, ledgers and evidence: {options.keep}")
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nodes and namespaces are removed on the way out
    sys.exit(main())
