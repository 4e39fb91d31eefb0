"""`horsies init`: writes a small project to start from.

`names` decides which name a project may have and `rendering` what its files contain, both without touching the disk of
the user; `writing` writes them, all or none, and never over a file that exists. `templates/` holds the files.
"""
