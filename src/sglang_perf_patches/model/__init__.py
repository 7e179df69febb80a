"""Patches, selections, releases and states as data. It imports no other room."""
