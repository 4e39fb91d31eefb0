"""horsies beside its peers. `run.py` is the entry point, `systems.py` lists who takes part, `scenarios.py` what is measured."""
