"""What every training has, of either mode: loop, folder, checkpoints, callbacks, and how runs are started and shown.

Others import ``loop`` (what is trained), ``checkpoint``, ``atomic`` and ``tensor_file`` (what is kept on disk), and
``experiments``, which trains. It knows neither parties nor clients: a mode is looked up by name.
"""
