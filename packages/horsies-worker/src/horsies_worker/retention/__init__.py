"""Deletes what has been kept long enough. Nothing else in the worker deletes rows."""
