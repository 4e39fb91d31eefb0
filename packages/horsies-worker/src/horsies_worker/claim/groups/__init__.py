"""Claims tasks with a group, beside the claimer of all others: `plan.py` decides, `claimer.py` carries it out.

Writes `horsies_tasks`, `horsies_limits` and `horsies_rate_limits`, all through `horsies_claim_grouped`. It must never
start a task that this function has not counted.
"""
