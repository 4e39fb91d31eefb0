"""The progress of workflows: `advance` hears of ended tasks, `step` applies them, `resolve` decides what follows.

Writes `horsies_workflows`, `horsies_workflow_tasks` and the tasks of nodes that become ready. It runs no user code.
"""
