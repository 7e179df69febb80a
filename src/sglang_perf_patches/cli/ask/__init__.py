"""What the patches would do in a server, asked before it boots: ``doctor -- COMMAND``."""
