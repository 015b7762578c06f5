# SPDX-License-Identifier: MIT
"""The wheel that `make wheel` builds has programs, which are for one kind of machine and for every Python. (The package alone is for all
machines: it needs no setup.py.)"""
from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Programs(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"bdist_wheel": Wheel}, distclass=Programs, scripts=["bin/fccd", "bin/fccctl"])
