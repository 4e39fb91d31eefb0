"""The soak: a fleet under load, struck by every kind of fault from a seed, and judged by its rows and by a ledger.

    just soak --minutes 10 --seed 7

`plan` draws the faults, `run` starts server, fleet and producers and lets `nemesis` carry the plan out, `watch` judges
every few seconds and `rules` after the drain, `report` prints the verdict. The ledger is in local files that the tasks
and the producers append to: it survives what the database under test does not.
"""
