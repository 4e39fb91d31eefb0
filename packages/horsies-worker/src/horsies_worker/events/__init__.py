"""The worker's event bus and what hangs on it: log lines of attempts, and the handlers of the app (`app.on_event`).

The events themselves are in `horsies.events`. Writes no table. A subscriber must never slow down or break a service.
"""
