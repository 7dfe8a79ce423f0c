"""Support: what a run of the tests leaves behind when it ends, in order or not."""
