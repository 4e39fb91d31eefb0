"""An app whose import never ends, inside C code that holds the GIL."""

from tests.support.pool_apps import App, hold_gil

app = App()
hold_gil(600)
