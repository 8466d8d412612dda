"""What runs inside every sandbox: a supervisor on the standard library alone, shipped as one zipapp.

It starts commands, records their output, kills what must be killed and serves files, for one peer at a time, over
its own stdin and stdout. It keeps no secret and decides no policy. Python 3.8 and later.
"""
