# SPDX-License-Identifier: MIT
"""Memory of the daemon's that results take: pools of blocks, what forked children may not use of them, and the copies that calls make."""
