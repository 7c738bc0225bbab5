"""Triton kernels: a decoder's layers, and the operations of the law. `switch` turns them on.

`launch` has what all of them share. `layer` and `selection` are the kernels, and `trial` compares
them with PyTorch before any picture.
"""
