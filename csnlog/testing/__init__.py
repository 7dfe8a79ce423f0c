"""An ensemble in memory that keeps ZooKeeper's promises, for tests, simulation and exploration.

May import: csnlog/core.
Entry points: `MemoryEnsemble`, `MemoryStore`; a plan of `RequestFault` says what fails.
On failure: it fails as its plan of faults says; the suite of tests/support/zookeeper/store_suite.py runs
    against it and against the real one.
"""
