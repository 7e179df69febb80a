"""Putting patches live in a process, and taking them off again."""
