"""Arms the shims; Python runs this at the start of every process of the server."""

import linux_shims

linux_shims.arm()
