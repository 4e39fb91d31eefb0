"""just bench [quick | full | against REV | peers | report FILE | --list | NAME ...], each with --help where it has options

quick    horsies beside every peer that is installed; a few minutes (the default)
full     all scenarios, half an hour or more
against  this working tree beside another commit of horsies, in turns, as ratios
peers    install the peers into a cache outside the repository; `peers NAME,NAME` installs only these
report   the tables of a run's JSON as Markdown, for the documentation
NAME     one or more of the single benches; `day`, `fleet`, `history` and `capacity` have options of their own:
"""

import importlib
import sys
from pathlib import Path

from bench import capacity, day, fleet, history
from bench.compare import against, install, report, results, run, systems

SHARED = ("bare_sql", "support")
WITH_OPTIONS = {"fleet": fleet.main, "history": history.main, "capacity": capacity.main, "day": day.main}


def main(arguments: list[str]) -> int:
    command, rest = (arguments or ["quick"])[0], arguments[1:]
    if command in ("quick", "full"):
        return run.main(command, rest)
    if command == "against":
        return against.main(rest)
    if command == "peers":
        install.install_all(*map(systems.find, rest))
        return 0
    if command == "report" and rest:
        print(report.markdown(results.read(Path(rest[0]))))
        return 0
    if command in WITH_OPTIONS:
        return WITH_OPTIONS[command](rest)
    names = [path.stem for path in sorted(Path(__file__).parent.glob("[!_]*.py")) if path.stem not in SHARED]
    if command == "--list" or not {command, *rest} <= {*names}:
        print(__doc__, *(f"  {name:15} {_title(name)}" for name in names), sep="\n")
        return 0 if command == "--list" else 2
    for name in [command, *rest]:
        print(f"\n== {name}: {_title(name)}\n", flush=True)
        importlib.import_module(f"bench.{name}").main()
    return 0


def _title(name: str) -> str:
    return (importlib.import_module(f"bench.{name}").__doc__ or "").split("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
