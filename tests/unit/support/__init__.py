"""Tests of the tools that other tests rely on."""
