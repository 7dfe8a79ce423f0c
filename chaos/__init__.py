"""The chaos runner: a cluster under load, faults drawn from a seed, and the proof that no promise was broken.

    make chaos SEED=7 MINUTES=3

A run has four phases, through which `runner.py` goes. Workloads begin on a cluster that is well
(`workloads/`, what clients do). Then faults come (`faults/`, what happens to nodes), as the plan of the seed
says and never more at a time than what is promised to be survived (`planning/`); `injector.py` lets them
happen. Then `healing.py` ends everything, and all has to be well again in a bounded time. At the end the
checks (`checks/`) judge the histories of the workloads, the journal of the run and the state of all replicas.

A workload, a fault and a check are each one small file with one class, and one line in the list of their
folder. docs/testing.md says how one is added. They share a `World` (`world.py`): the cluster, the journal
and the seed.

The other rooms: `setup/` has the settings and images of the cluster; `clients/` the sessions of clients,
which `load.py` runs, and `spark/` those of Spark; `watching/` asks the replicas while faults act; `record/`
has the journal and the histories that all of them write; `reading/` reads them, and `result.py` sums up;
`judging/` has judges that several workloads share; `report/` shows what happened; `plants/` has bugs that a
run must find.
"""
