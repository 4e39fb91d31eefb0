"""`python -m project_name ADDRESS`: sign up, and wait for the result of the task."""

import sys

from project_name.customers import sign_up

if len(sys.argv) != 2:
    sys.exit("usage: python -m project_name ADDRESS")
print(sign_up(sys.argv[1]).get(timeout_ms=30_000))
