"""horsies beside its peers: `python -m bench quick | full | peers`. `run.py` is the way in, `table.py` who takes part."""
