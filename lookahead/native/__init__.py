"""CPU kernels in C++, compiled on the machine that runs them.

- ``tile.h``, ``linear.h``, ``attention.h``, ``kernels.cpp``: the kernels.
- ``build.py``: compiles them once per processor, keeps the library in the user's cache folder.
- ``matrix.py``, ``layer.py``: linear layers and decoder layers over them.

Without a compiler, or where it fails, the engine does without them.
"""
