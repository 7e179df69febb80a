"""Real launch commands, and which patches act in each on the newest release.

`commands` has the commands, `models` the models' configurations, `outcomes` asks the release,
`oracle` says what it should answer, and ``table.md`` has a row for each command: ``python3 -m
tests.maintain.recipes`` writes it.
"""
