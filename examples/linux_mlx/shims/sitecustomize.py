"""Python runs this at the start of every process of the server: it arms the shims."""

import linux_shims

linux_shims.arm()
