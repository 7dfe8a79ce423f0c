"""HTTP interface of the protocol process: /api/v1 for clients, /peer/v1 for agents, metrics and health.

Handlers translate between HTTP and the agent's parts; they decide nothing. Routes, bodies and answers:
docs/protocol.md.
"""
