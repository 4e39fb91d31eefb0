"""The pictures of docs/pictures, drawn by these modules: `just pictures`.

SVG without scripts, fonts or addresses of other hosts. Each picture brings its own background and colours for light and
for dark, so that it can be read on any page.
"""

from collections.abc import Callable
from pathlib import Path

from tests.support.pictures import architecture, recovery, sequence, states

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"
PICTURES: dict[str, Callable[[], str]] = {
    "task-states.svg": states.draw,
    "architecture.svg": architecture.draw,
    "one-task.svg": sequence.draw,
    "killed-worker.svg": recovery.draw,
}
