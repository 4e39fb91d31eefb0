"""Log records of the worker, and the stdout and stderr of its child processes. No database."""
