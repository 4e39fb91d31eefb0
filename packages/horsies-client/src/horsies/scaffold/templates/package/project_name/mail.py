"""The mail server of project_name. Replace `deliver` by your own: it raises OSError when the server cannot be reached."""

import logging

log = logging.getLogger(__name__)


def deliver(address: str, text: str) -> None:
    log.info("mail to %s: %s", address, text)
