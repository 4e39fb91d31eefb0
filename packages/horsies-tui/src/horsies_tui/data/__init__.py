"""What the dashboard knows, without a terminal: sources, filters, the live feed. Never imports Textual."""
