"""CPU kernels in C++, compiled on the machine that runs them.

- ``tile.h``: the inner loop of all products. ``linear.h``: linear layers with normalisation,
  activation and residual. ``rotary.h``, ``attention.h``: what lies between them. ``top.h``: the
  likeliest tokens. ``kernels.cpp``: what Python calls.
- ``build.py``: compiles them once per processor and keeps the library in the user's cache folder.
  ``load.py``: loads them if they compute rightly.
- ``matrix.py``, ``attention.py``, ``top.py``: the kernels for tensors. ``layer.py``: decoder
  layers over them.

Without a compiler, or where it fails, the engine does without them.
"""
