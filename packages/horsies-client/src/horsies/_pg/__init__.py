"""The mailroom: everything that talks to PostgreSQL. For our sibling packages only, not for users.

Empty on purpose: importing one room must not load the driver for all of them.
"""
