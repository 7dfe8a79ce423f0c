"""Delta, Iceberg and Tidelock through one Spark: reads, writes, deletes and updates, and small commits.

All of them share one session of Spark 3.5 (tests/spark35.in), for which both peers have jars, and take turns.
It is another Spark than the environment's, so the measurements run in a process tree of their own
(`python -m bench.spark_peers`), beside the clusters (`run.py`). Spark fetches the jars of Delta and Iceberg
from Maven at its first start (`session.py`); without them the part fails.
"""
