"""Switching patches on in a process, and off again."""
