"""Batches: many calls that are sent together, and a task that runs once when all of them have ended.

A batch is stored as a run of a workflow without a definition: `start.py` writes its rows, and the worker advances it
like any other run.
"""
