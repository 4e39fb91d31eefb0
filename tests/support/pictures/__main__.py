"""`just pictures`: draw them anew. Look at them before you commit them."""

from tests.support.pictures import FOLDER, PICTURES

for name, draw in PICTURES.items():
    (FOLDER / name).write_text(draw())
