"""The table of rules in the documentation has a text for each."""

from rooflinekit.cost.table import described_rules


def test_every_rule_says_what_it_counts():
    assert [kinds for rows in described_rules().values() for text, kinds in rows.items() if not text] == []
