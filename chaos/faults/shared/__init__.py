"""The means that several faults have in common: each file is one of them, and none of them is a fault.

To harm: `cutting` (the network), `tracing` (system calls), `rotting` (bytes of parts), `members` (changes of
the members), `ensemble` (servers and sessions of ZooKeeper). To prove: `signs` (several signs make one
proof), `clocks` (a wall clock as the others see it). To heal: `reviving` (until a node serves again).
"""
