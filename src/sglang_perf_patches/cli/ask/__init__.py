"""Which patches would be live in a server, before it boots: ``doctor -- COMMAND``."""

ENDS, FAILED, GONE, LACKS = "ends", "failed", "gone", "lacks"
REFUSED, UNFETCHED = "refused", "unfetched"
"""Why a release gave no server: the arguments only print something; something failed that need not
be the release's; a path of a model or a package is not here; the release refuses the arguments; a
model could not be fetched."""
