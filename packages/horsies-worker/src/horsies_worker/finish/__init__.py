"""Writes how attempts ended: `decide` turns an outcome into a transition, the finalizer writes many of them at once,
and again those that a failover has lost.

Writes `horsies_tasks` (RUNNING to a final state, or back to PENDING) and `horsies_task_attempts`.
"""
