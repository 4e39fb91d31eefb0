"""The data of the dashboard: sources, filters, the feed. It reads through `horsies.operate` and its own statements in
`sql/`, writes only through the broker, and never imports Textual."""
