"""PostgreSQL for the worker: sessions that reconnect, and every statement of the worker as SQL in `sql/`."""
