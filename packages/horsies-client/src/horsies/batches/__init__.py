"""Batches: many calls that are sent together, and a task that runs once when all of them have ended.

A batch is a run of a workflow that nobody defines: `start.py` writes its rows, the worker moves it on as any run.
"""
