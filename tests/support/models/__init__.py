"""Small pure models of what horsies does, for Hypothesis to play against the real thing."""
