"""The values of calls: arguments in their several forms, rows, and results."""
