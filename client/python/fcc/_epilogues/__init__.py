# SPDX-License-Identifier: MIT
"""Parts of epilogues.py: kernels.py has torch.ops.fcc.*_epilogue, checks.py what can be wrong with a call."""
