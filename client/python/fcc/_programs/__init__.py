# SPDX-License-Identifier: MIT
"""Programs of computation and exchange, written in Python: values.py (what expressions make), tracing.py (@fcc.program), program.py (printing,
transformations), running.py (on a communicator). The language is that of client/PROGRAMS.md."""
