"""What the patches would do in a server, asked before it boots: ``doctor -- COMMAND``."""

QUICKLY, WHOLLY = "quickly", "wholly"
"""How `resolver` imports a release: without what no argument depends on, or all of it."""
