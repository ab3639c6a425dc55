"""Compilers of the user's own sources: where they lie, who they are, how they are called.

`jit.toolchain` says who the C++ compiler is; here follow what C++ and CUDA sources need besides:
options in one form, the CUDA toolkit, its GPU architectures, commands and typed failures. What
concerns CUDA is imported by its module: C++ sources never touch it.
"""

from opkiln.runtime.toolchains.backend import CompilerBackend
from opkiln.runtime.toolchains.cpp import CppBackend
from opkiln.runtime.toolchains.options import CompileOptions

__all__ = ["CompileOptions", "CompilerBackend", "CppBackend"]
