"""Histories: plans of sessions, what clients were told, and the checkers that judge it."""
