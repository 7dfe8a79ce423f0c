"""Breadth-first exploration of the product's own cores (docs/protocol.md, "How the core is explored")."""
