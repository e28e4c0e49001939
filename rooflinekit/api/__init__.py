"""The walks through the pipe, one for each question; `rooflinekit/__init__.py` is their public door."""
