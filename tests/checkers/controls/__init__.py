"""The proof that the checkers can fail: stores with a known defect, and histories written by hand.

``defective_store.py`` is a correct store with switchable defects, ``workload.py`` a random load on it, and
``expected.py`` the findings that each control must lead to.
"""
