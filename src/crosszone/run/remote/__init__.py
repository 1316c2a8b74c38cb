"""What runs on the machines that train: Python 3.8 and its standard library are all a machine needs.

Nothing is installed there: the text of these files goes ahead of each request (`crosszone.run.machine`).
"""
