"""Programs for those who maintain horsies; nothing here is installed."""
