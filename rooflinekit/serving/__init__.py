"""Language models as engines serve them: a description → graphs of prefill and decode → a served stream of requests.

Stands beside `study`: it builds graphs out of ops (`ir`, `cost`), has them predicted (`step`), and answers. Torch-free:
a decoder is described by a dozen numbers, not traced.
"""
