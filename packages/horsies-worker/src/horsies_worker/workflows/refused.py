"""The errors of nodes that end without a start: a value is missing, or what they would run cannot be made. Pure."""

from typing import Any, Final

from horsies.codec import encode_error
from horsies.errors import OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.result import TaskError

SKIPPED: Final = encode_error(TaskError(OutcomeCode.UPSTREAM_SKIPPED, "a node that it waits for failed or was skipped"))
NOT_TAKEN: Final = encode_error(TaskError(OutcomeCode.BRANCH_NOT_TAKEN, "it is in a branch that was not taken"))
NO_OUTPUT: Final = encode_error(
    TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, "the output of the run is in a branch that was not taken")
)
STOPPED: Final = encode_error(
    TaskError(OutcomeCode.WORKFLOW_CANCELLED, "the run was stopped before the task could continue")
)
NOT_READY: Final = encode_error(TaskError(RetrievalCode.RESULT_NOT_READY, "had not ended when this node became ready"))
NOT_AVAILABLE: Final = encode_error(TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, "it ended without a stored result"))
LOST: Final = encode_error(TaskError(OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, "the row of its task is gone"))


def cannot(why: str) -> TaskError:
    return TaskError(OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, why)


def no_condition() -> TaskError:
    message = "the value that decides whether it runs is not a bool"
    return TaskError(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)


def unreadable(why: str) -> TaskError:
    return TaskError(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, why)


def no_value(node_id: Any) -> TaskError:
    message = f"node {node_id!r}, whose value it takes, completed without a stored result"
    return TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, message)


def too_large(max_bytes: int) -> TaskError:
    return cannot(f"with what it is given its arguments are larger than {max_bytes:,} bytes")


def too_wide(width: int, limit: int) -> TaskError:
    return cannot(f"the list has {width:,} items, more than its max_width of {limit:,}")


def not_a_list() -> TaskError:
    return cannot("the value to map over is not a list")


def large_output(max_bytes: int) -> TaskError:
    return cannot(f"the output is larger than {max_bytes:,} bytes")
