"""Which patches would be live in a server, before it boots: ``doctor -- COMMAND``."""

QUICKLY, WHOLLY = "quickly", "wholly"
"""How `resolver` imports a release: without modules that no argument depends on, or entirely."""
