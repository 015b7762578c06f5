# SPDX-License-Identifier: MIT
"""Programs that use fcc. Where the package is installed: torchrun --nproc_per_node 2 -m fcc.examples.llama"""
