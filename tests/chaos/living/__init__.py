"""A cluster under load that lives through everything that happens to one: faults, new disks, new members.

`nemesis` does things to the cluster, `spark_readers` read from it beside the load of
`tests/support/histories/workload.py`, and `availability` tells from the history what clients noticed.
"""
