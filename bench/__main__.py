"""The benches: `python -m bench quick | full | peers`, or single ones by name, each in a process of its own.

quick   horsies beside every peer that is installed; a few minutes (the default)
full    every scenario, an hour or so; `full --help` for a part of it
peers   installs the peers, into a cache outside the repository
report  the tables and plots of a run's JSON, for the documentation
all     every single bench of this folder, one after the other
"""

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUNS = ("quick", "full", "peers", "report")


def benches() -> dict[str, str]:
    """Every module with a `main()`, and the first line that it says about itself."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("[!_]*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").split("\n")[0]
    return found


def run() -> int:
    arguments = sys.argv[1:] or ["quick"]
    if arguments[0] in RUNS:
        from bench.compare import run as compare

        return compare.main(arguments[0], arguments[1:])
    known = benches()
    wanted = list(known) if arguments == ["all"] else arguments
    if unknown := [name for name in wanted if name not in known]:
        if unknown != ["--list"]:
            print(f"no bench {', '.join(unknown)}; there are:")
        print((__doc__ or "").split("\n", 2)[2])
        for name, title in known.items():
            print(f"  {name:16} {title}")
        return 0 if unknown == ["--list"] else 2
    failed = [name for name in wanted if _run_one(name, known[name])]
    return 1 if failed else 0


def _run_one(name: str, title: str) -> int:
    print(f"\n== {name}: {title}\n", flush=True)
    return subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=HERE.parent, check=False).returncode


if __name__ == "__main__":
    sys.exit(run())
