"""Enqueues tasks and starts workflows when their schedules are due. Writes
`horsies_schedule_state`, `horsies_schedule_runs`, `horsies_schedulers` and new tasks.

local_times   which times of the local clock a pattern names (pure)
next_run      which instants those are, and the rules for clocks that jump (pure)
slots         which slots of a due schedule run, and when it is due next (pure)
state         the rows of schedules in code, and the writing of runs
stored        schedules that were made at run time: their rows, and what is wrong with them
blocked       schedules whose slot another session holds, and who that is
passed        what the log says of slots that pass without a run
scheduler     the service: reads the state, fires due slots, sleeps until the next one
process       `horsies scheduler`: a scheduler in a process of its own
"""
