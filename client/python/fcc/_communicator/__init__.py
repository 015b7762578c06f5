# SPDX-License-Identifier: MIT
"""What communicators and their operators have in common: waits that end with Ctrl-C, and refusals of which all ranks are told."""
