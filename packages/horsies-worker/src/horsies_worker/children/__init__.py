"""The parent's side of the child processes: starts them, assigns jobs, stops them, and reports how each job ended.

No database: jobs come in and outcomes go out as plain values.
"""
