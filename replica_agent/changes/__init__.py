"""The change feed: which rows of a table came and went, commit by commit.

A commit's *change set* are the parts that it has added to a table and those that it has removed, compaction
left out, since it changes no row. Its *changes* are rows: what is in the removed parts and not in the added
ones was deleted, and the other way round was inserted, each row as often as it comes. So what a rewritten
part carries over unchanged is no change, and whoever applies the changes of (from, to] to the rows at `from`
has the rows at `to`.
"""
