"""horsies-worker: claims tasks from PostgreSQL and runs them in supervised child processes.

`horsies worker module:app` on the command line; `app.run_worker("module:app")` in Python.
"""

__version__ = "0.1.0"
