"""Checkers of isolation that know nothing of the product: histories in, anomalies out.

``operations.py`` is the format of a history. ``by_timestamps.py`` judges it by the numbers that the store has
reported, ``black_box.py`` by the lists alone, and ``python -m tests.checkers HISTORY`` does both. The package
imports the standard library only, so no mistake of the product can hide itself in its judge. A checker that
cannot fail is worthless: ``controls/`` has a history and a defect of a store for each anomaly.
"""
