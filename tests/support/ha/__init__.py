"""Real failovers: three PostgreSQL nodes under Patroni and etcd, workers, a producer, faults of the leader, a verdict.

`just failover` runs it (`__main__.py`). `network.py` gives each node an address, `patroni.py` the configuration of a
node, `cluster.py` starts and hurts nodes, `producer.py` is the process that sends, `load.py` runs it and the workers,
`faults.py` has the faults in turns, and `verdict.py` judges what was acknowledged against what is in the database;
`evidence.py` explains each task that is lost, ran twice or failed.
"""
