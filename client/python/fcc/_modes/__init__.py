# SPDX-License-Identifier: MIT
"""How the modes of PyTorch see the operators: autograd.py (formulas: derivatives.py), autocast.py, vmap.py."""
