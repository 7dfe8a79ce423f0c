"""Tests of the package `tidelock/wire`."""
