"""Runs the benches of this folder, each in a process of its own: `python -m bench [--list] [name ...]`."""

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def benches() -> dict[str, str]:
    """Every module with a `main()`, and the first line that it says about itself."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("[!_]*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").split("\n")[0]
    return found


def run() -> int:
    known = benches()
    wanted = sys.argv[1:] or list(known)
    if unknown := [name for name in wanted if name not in known]:
        if unknown != ["--list"]:
            print(f"no bench {', '.join(unknown)}; there are:")
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
