"""Prefill attention for Hopper, in Gluon.

Gluon is Triton's language for kernels that choose layouts and warps themselves
(https://triton-lang.org/main/getting-started/tutorials/gluon). Its kernels run on a GPU alone.
"""
