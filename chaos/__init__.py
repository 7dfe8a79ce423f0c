"""The chaos runner: a cluster under load, faults drawn from a seed, and the proof that no promise was broken.

    make chaos SEED=7 MINUTES=3

A run has four phases. Workloads begin on a cluster that is well (`workloads/`, what clients do). Then faults
come (`faults/`, what happens to nodes), as the plan of the seed says (`plan.py`), never more at a time than
what is promised to be survived (`tolerance.py`). Then all is healed, and everything has to be well again in
a bounded time. At the end the checks (`checks/`) judge the histories of the workloads, the journal of the
run and the state of all replicas, and the report shows what happened (`report/`).

A workload, a fault and a check are each one small file with one class, and one line in the list of their
folder. docs/testing.md says how one is added.
"""
