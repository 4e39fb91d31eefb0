"""What the application does; a task takes over what should not keep it waiting."""

from horsies import TaskHandle

from project_name.tasks import send_welcome


def sign_up(address: str) -> TaskHandle[str]:
    return send_welcome.send(address)
