"""The figures of a run as tables, as a picture, and beside the aims."""
