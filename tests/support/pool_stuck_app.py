"""An app whose import never ends, inside C code that holds the GIL."""

import os

from tests.support.pool_kit import App, hold_gil, note

app = App()
note(os.environ["HORSIES_TEST_TRACE"], "importing")
hold_gil(600)
