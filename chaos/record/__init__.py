"""The files of a run: its journal, the histories of its clients, the violations."""
