"""From an exception that user code let escape to the error code that its result carries."""

from collections.abc import Mapping


def error_code_for(exc: BaseException, mapper: Mapping[type[BaseException], str], default: str) -> str:
    """The code of the most specific mapped class.

    Walks the method resolution order, so `{OSError: "IO", ConnectionError: "NET"}` calls a
    ConnectionResetError "NET" whatever the order of the mapping.
    """
    for cls in type(exc).__mro__:
        code = mapper.get(cls)
        if code is not None:
            return code
    return default
