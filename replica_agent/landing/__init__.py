"""Landing tables: rows count as written when they are durable on enough disks, and are committed afterwards.

Entry points: `Landings` takes rows for this home, `Rescue` commits those of a home whose boot has ended.
"""
