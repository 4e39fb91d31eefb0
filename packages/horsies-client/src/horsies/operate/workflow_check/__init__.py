"""`horsies workflows check`: which live runs need a task or a signature that this code no longer has.

A run keeps its graph and its arguments; the bodies and the signatures of its tasks come from the code that a worker
loads. `compare` is pure and works on stored nodes; `reading` reads them, in pages of bounded size. Nothing is written.
"""

from horsies.operate.workflow_check.reading import MAX_RUNS, check_runs
from horsies.operate.workflow_check.report import MisfitKind, Place, WorkflowCheck, WorkflowProblem

__all__ = ["MAX_RUNS", "MisfitKind", "Place", "WorkflowCheck", "WorkflowProblem", "check_runs"]
