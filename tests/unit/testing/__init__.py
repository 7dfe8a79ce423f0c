"""Tests of tidelock.testing without servers."""
