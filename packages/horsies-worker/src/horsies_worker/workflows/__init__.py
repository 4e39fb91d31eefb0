"""The progress of workflows: what becomes ready when something ended. `resolve` decides, `advance` applies."""
