"""Signs of life, and recovery without them: heartbeats, leases, snapshots, dead-worker detection, the reaper.

Writes `horsies_heartbeats`, `horsies_worker_instances`, `horsies_worker_states`, and the rows of tasks whose worker is
gone. It never touches a task whose worker gives signs of life.
"""
