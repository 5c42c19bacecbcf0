"""The printed tables of papers, each row built and counted again.

A module in this package registers a table with one function::

    @table("evit-table-1")
    def evit_table_1() -> Table:
        \"\"\"EViT, table 1: MACs of DeiT-S over keep rates.\"\"\"

The listing shows the first line of the docstring. ``foveate.tables.figures`` judges all rows by one rounding rule.
A table holds if all of its rows do, and ``foveate tables`` exits with 1 otherwise.
"""

from foveate.tables.registry import Row, Table, all_tables, table

__all__ = ["Row", "Table", "all_tables", "table"]
