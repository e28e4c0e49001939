"""Measurements → constants: which ops tell which, one value for all GPUs and each GPU's own, and the files of them."""
