"""A whole shard in one process and in virtual time, by seed: replicas, clients, ZooKeeper, network, disks."""
