"""The public interface as text, one line per name: `just api` writes tests/architecture/public_api.txt, and a test
compares it with the code, so that a change of what users rely on is seen in review.

`names` reads the modules, `commands` the command lines; `__main__` adds codes, metrics and SQL functions."""
