"""Middleware for other libraries, each with an extra of horsies-client. Nothing else of the client imports these."""
