"""Configuration of an agent: settings, states and their allowed actions, logs, metrics, memory allocator.

May import: csnlog/core.
Entry points: `AgentSettings`, `load`, `AgentState`, `require`, `Metrics`.
On failure: a bad setting is ConfigError before anything starts; an action that the state forbids is refused
    with the reason.
"""
