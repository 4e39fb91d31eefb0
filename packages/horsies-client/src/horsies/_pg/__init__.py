"""Everything that talks to PostgreSQL. For the other horsies packages, not for users.

This file stays empty: importing one module must not load the driver for all of them.
"""
