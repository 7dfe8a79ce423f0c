"""A real ZooKeeper for tests, and the suite that every store must pass."""
