"""Language models as engines serve them: the graphs of a decoder's steps → a served stream of requests.

Stands beside `study`: it has graphs of `decoder` predicted (`step`), and answers.
"""
