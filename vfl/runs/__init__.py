"""Trainings of either mode: the loop, the run folder, checkpoints, callbacks, and how runs are started and shown.

Other rooms import ``loop`` (the algorithm's protocol), ``checkpoint``, ``atomic`` and ``tensor_file`` (files on disk),
and ``experiments``, which trains. Nothing here knows parties or clients: a mode is looked up by name.
"""
