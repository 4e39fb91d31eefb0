"""Claims ready tasks: decides when and how many (`plan.py`), and gives them to the child processes.

Writes `horsies_tasks` (PENDING to CLAIMED, RUNNING, EXPIRED or FAILED) and `horsies_task_names`. It never ends a task
that has started.
"""
