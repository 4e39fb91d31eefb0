"""One module per system, each run by that system's own interpreter; `driver.py` says what a module has to offer."""
