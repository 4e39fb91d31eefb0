"""Workflows in the client: nodes, validation, start, and the handle of a run."""
