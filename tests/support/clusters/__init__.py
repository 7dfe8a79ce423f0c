"""Clusters for tests: as processes, forked, in containers, or in memory."""
