"""Sessions of Spark that work for several workloads in turn: each is a process of its own."""
