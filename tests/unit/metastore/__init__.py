"""Tests of `tidelock/metastore`."""
