"""The pure core of replication: durable copies, the executed prefix, the rules of locks and of the horizon.

May import: csnlog/core.
Entry points: `Copies`, `Prefix`, `wire` (bytes of a push), `lock_rules`, `horizon_rules`.
On failure: a machine whose state no correct history leads to raises InvariantError with its last steps;
    bytes it cannot read are CorruptError.
"""
