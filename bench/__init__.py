"""How fast it is, as ratios to bare SQL and to peers, measured in one run: `just bench [name ...]`."""
