"""`just soak [--minutes 10] [--seed N]`. Exit codes: 0 good, 1 violations, 2 only a rate is below 95 %, 3 no run."""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.soak.run import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="just soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="1 or more (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="default: by the clock")
    parser.add_argument("--folder", type=Path, default=None, help="where everything is kept, also of a good run")
    parser.add_argument("--no-rates", action="store_true", help="report the rates, and do not judge by them")
    given = parser.parse_args()
    if given.minutes < 1:
        parser.error("--minutes must be 1 or more")
    seed = given.seed if given.seed is not None else int(time.time()) % 100_000
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"soak-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - began:5.0f} s] {text}\n")
        sys.stdout.flush()

    try:
        verdict = soak(seed, given.minutes, folder, tell=tell)
    except Exception:
        traceback.print_exc()
        tell(f"the run has failed; {folder} has what there is")
        return 3
    for line in verdict.lines():
        sys.stdout.write(line + "\n")
    code = verdict.exit_code(with_rates=not given.no_rates)
    if code:
        sys.stdout.write(
            f"\nFAILED. Everything is in {folder}\nAgain: just soak --minutes {given.minutes:g} --seed {seed}\n"
        )
    else:
        sys.stdout.write("\nPASSED\n")
        if given.folder is None:
            shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
