"""Steps several real sessions through every order of their statements, and judges how each order ends.

`schedule.py` runs one order and enumerates all of them; `gates.py` also stops a statement between its snapshot and its
locks; `programs.py` has what workers, reapers, operators and user code do; `scenes.py` says which of them meet.
"""
