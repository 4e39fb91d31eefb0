"""`python -m horsies_worker` is `horsies worker`, without a console script on the path."""

import sys

from horsies_worker.cli import worker_main

sys.exit(worker_main())
