"""Workflows from the client's side: nodes and their edges, validation, start, and the handle of a run."""
