"""Everything for operators: filters, views of tasks, workers, queues and schedules, actions, doctor and commands.

`broker.py` is the Python API over it, `commands/` the command line. It reads every table, and changes rows only by the
guarded statements of `_pg/sql`.
"""
