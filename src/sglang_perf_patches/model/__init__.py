"""Patches, selections, releases and states as data. Imports no other package of the project."""
