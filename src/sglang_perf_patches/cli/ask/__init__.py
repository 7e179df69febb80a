"""Which patches would be live in a server, before it boots: ``doctor -- COMMAND``."""
