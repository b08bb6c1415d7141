"""CPU kernels in C++, compiled on the machine that runs them.

- ``tile.h``: the inner loop of all products. ``weights.h``: weights in panels, in fewer bytes where
  that loses nothing. ``linear.h``: linear layers with normalisation, activation and residual.
  ``rotary.h``, ``attention.h``: what lies between them. ``stack.h``: all layers of a pass.
  ``top.h``: the likeliest tokens. ``kernels.cpp``: what Python calls.
- ``build.py``: compiles them once per processor and keeps the library in the user's cache folder.
  ``load.py``: loads them if they compute rightly, by the tasks of ``trials.py``.
- ``matrix.py``, ``attention.py``, ``layers.py``, ``top.py``: the kernels for tensors. ``layer.py``
  and ``stack.py``: a decoder layer and all of them, for the passes' copy of a model.

Without a compiler, or where it fails, the engine does without them.
"""
