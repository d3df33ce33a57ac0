"""Leakage: attacks by a curious owner or server on the data that training shows it, each with a control of pure chance.

`estimate` measures, `gradients` infers labels from gradients, `embeddings` infers labels and features from embeddings.
They are functions of arrays; `vfl.audit.watch_run` passes them the data that an owner of a run really has.
"""
