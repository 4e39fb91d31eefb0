"""The errors of nodes that end without a start: a value is missing, or what they would run cannot be made. Pure."""

from typing import Any

from horsies.errors import OperationalErrorCode, RetrievalCode
from horsies.result import TaskError


def cannot(why: str) -> TaskError:
    return TaskError(OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, why)


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
