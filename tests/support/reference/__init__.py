"""The generators of docs/reference. Each module makes one or two pages; `tests.support.reference_pages` writes them."""
