"""The way to the agents: their addresses, connections and requests, and what keeps work alive there."""
