"""Arms the shims; Python runs this at the start of every process of the server."""

import linux_shims
import twin

linux_shims.arm()
linux_shims.load_fast_blas()
twin.arm()
