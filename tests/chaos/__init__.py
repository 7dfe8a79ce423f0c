"""Agents that are killed at a system call, disks that fail under them, and power that is cut."""
