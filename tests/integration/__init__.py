"""Integration tests: real ZooKeeper servers, agents as processes, Spark sessions."""
