"""`python -m horsies_worker` is `horsies worker`, without a console script on the path."""

import sys

from horsies._output import open_missing
from horsies_worker.cli import worker_main

open_missing()
sys.exit(worker_main())
