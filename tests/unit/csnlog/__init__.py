"""Tests of the CSN log."""
