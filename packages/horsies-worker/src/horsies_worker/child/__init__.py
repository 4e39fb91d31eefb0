"""Runs inside a child process: receives jobs, calls user code, reports outcomes. No database connection.

Also holds the values that parent and child share: jobs, outcomes and frames. It imports no other service.
"""
