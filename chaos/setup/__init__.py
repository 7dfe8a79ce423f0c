"""The settings, images and versions of the cluster of a run."""
