"""The planner: enqueues tasks when their schedules are due.

local_times   which times of the local clock a pattern names (pure)
next_run      which instants those are, and the rules for clocks that jump (pure)
moves         what becomes of a schedule that is due (pure)
state         the rows of horsies_schedule_state, read and written
scheduler     the service: looks, fires, sleeps until the next slot
process       `horsies scheduler`: one of them, in a process of its own
"""
