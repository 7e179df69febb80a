"""Real launch commands, and which patches act in each on the newest release.

``table.md`` has a row for each; ``python3 -m tests.maintain.recipes`` writes it.
"""
