"""The definitions of a commit: which table gets which, and what is refused."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from tidelock.csnlog.core.ids import TableId
from tidelock.csnlog.core.model import ChangeTable, DefineTable
from tidelock.errors import BadRequestError, TableExistsError, TidelockError, UnknownTableError
from tidelock.replica_agent.tables import definitions
from tidelock.replica_agent.tables.definitions import Last
from tidelock.replica_agent.tables.names import full_name, is_namespace
from tidelock.replica_agent.tables.schema import Derivation, TableSchema
from tidelock.wire.ids import TableName

ARROW = pa.schema([("k", pa.int64())])
T = TableName("default.t")
ID = TableId(T)


def schema(name: str = "t", *, source: str | None = None, **properties: str) -> TableSchema:
    """Return the schema of a new table."""
    derivation = None if source is None else Derivation(TableId(source), "from inserted")
    return TableSchema.from_request(name, ARROW, properties=properties, derivation=derivation)


class Known:
    """The tables after some commits."""

    def __init__(self) -> None:
        self.tables: dict[TableId, Last] = {}
        self.gone: set[TableId] = set()

    def apply(self, *made: DefineTable) -> None:
        """Take definitions as a replica does."""
        for one in made:
            before = self.tables.get(one.table)
            assert one.version == (0 if before is None else before.version + 1)
            self.tables[one.table] = Last(one.version, TableSchema.from_definition(one.table, one.definition))
            if isinstance(one, ChangeTable) and one.drops:
                self.gone.add(one.table)

    def bearer(self, name: TableName) -> TableId | None:
        """Return the table with a name."""
        named = [
            one for one, last in self.tables.items() if last.schema.name == name and one not in self.gone
        ]
        assert len(named) < 2, "a name has one table"
        return named[0] if named else None

    def last(self, table: TableId) -> Last | None:
        """Return its last definition."""
        return self.tables.get(table)

    def names(self) -> dict[TableId, TableName]:
        """Return the names of all tables."""
        found = {table: last.schema.name for table, last in self.tables.items() if table not in self.gone}
        return {table: name for table, name in found.items() if not is_namespace(name)}

    def missing(self, name: TableName) -> UnknownTableError:
        """Return the error."""
        return UnknownTableError(f"there is no table {name}", table=name)


@pytest.fixture
def known() -> Known:
    """One table, default.t."""
    made = Known()
    made.apply(*definitions.creating(schema(), made))
    return made


def alter(
    known: Known, *, to: str | None = None, name: str = "t", **properties: str | None
) -> list[DefineTable]:
    """Change a table."""
    new = None if to is None else full_name(to)
    return definitions.altering(full_name(name), known, to=new, properties=properties)


def test_a_new_table_has_its_name_as_its_id(known: Known) -> None:
    """So earlier versions read the record, as they always did."""
    [made] = definitions.creating(schema("sales.u"), known)
    assert (type(made), made.table, made.version) == (DefineTable, "sales.u", 0)


def test_a_table_under_the_name_of_an_earlier_one_is_another_one(known: Known) -> None:
    """It has an id of its own each time, so nothing of the dropped ones can come back with it."""
    for number in range(2, 5):
        known.apply(*definitions.dropping(T, known))
        [made] = definitions.creating(schema(), known)
        assert (type(made), made.table, made.version) == (ChangeTable, f"default.t~{number}", 0)
        known.apply(made)
    assert known.bearer(T) == "default.t~4"


def test_a_name_that_a_rename_has_left_is_free(known: Known) -> None:
    """And the new name is taken; the id stays."""
    [renamed] = alter(known, to="sales.old")
    assert (type(renamed), renamed.table, renamed.version) == (ChangeTable, ID, 1)
    assert renamed.definition["name"] == "sales.old"
    known.apply(renamed)
    [made] = definitions.creating(schema(), known)
    assert made.table == "default.t~2"
    known.apply(made)
    with pytest.raises(TableExistsError, match=r"default\.t exists"):
        alter(known, name="sales.old", to="t")
    with pytest.raises(UnknownTableError):
        definitions.dropping(TableName("default.old"), known)


def test_the_end_of_a_table_keeps_its_definition(known: Known) -> None:
    """Those who read an earlier CSN, and those who look what was dropped, find its columns there."""
    [gone] = definitions.dropping(T, known)
    assert isinstance(gone, ChangeTable)
    assert gone.drops
    assert gone.definition == {**schema().definition(), "dropped": True}
    known.apply(gone)
    with pytest.raises(UnknownTableError):
        definitions.dropping(T, known)


def test_a_source_knows_its_dependents_by_their_ids(known: Known) -> None:
    """It is defined in the same commit, when one comes and when one goes; names do not matter."""
    known.apply(*alter(known, to="source"))
    made, source = definitions.creating(schema("d", source="default.t"), known)
    assert (made.table, source.table, source.version) == ("default.d", ID, 2)
    assert source.definition["dependents"] == ["default.d"]
    known.apply(made, source)
    with pytest.raises(
        BadRequestError, match=r"derived from default\.source.*: default\.d; drop these first"
    ):
        definitions.dropping(TableName("default.source"), known)
    known.apply(*alter(known, name="d", to="e"))
    gone, source = definitions.dropping(TableName("default.e"), known)
    assert (gone.table, source.table, source.version) == ("default.d", ID, 3)
    assert "dependents" not in source.definition
    known.apply(gone, source)
    known.apply(*definitions.dropping(TableName("default.source"), known))


def test_a_table_is_replaced_in_one_commit(known: Known) -> None:
    """The new one comes first; where there is none, it is made."""
    [made] = definitions.replacing(schema("u"), known)
    assert made.table == "default.u"
    made, gone = definitions.replacing(schema(comment="new"), known)
    assert (made.table, gone.table, gone.definition["dropped"]) == ("default.t~2", ID, True)
    known.apply(gone, made)
    assert known.bearer(T) == "default.t~2"


def test_a_derived_table_is_replaced_at_its_source(known: Known) -> None:
    """The source loses the former one, then gets the new one, each in a version of its own."""
    known.apply(*definitions.creating(schema("d", source="default.t"), known))
    made, gone, before, after = definitions.replacing(schema("d", source="default.t"), known)
    assert (gone.table, made.table) == ("default.d", "default.d~2")
    assert "dependents" not in before.definition
    assert (after.version, after.definition["dependents"]) == (before.version + 1, ["default.d~2"])
    known.apply(gone, before, made, after)
    with pytest.raises(BadRequestError, match="drop these first"):
        definitions.replacing(schema(), known)


def test_properties_come_and_go(known: Known) -> None:
    """The others stay; earlier versions read such a definition as they did."""
    [made] = alter(known, comment="orders of a day", compaction="off")
    assert (type(made), made.version) == (DefineTable, 1)
    known.apply(made)
    [made] = alter(known, comment=None, retention_s="7")
    assert made.definition["properties"] == {"compaction": "off", "retention_s": "7"}
    assert (
        dataclasses.replace(TableSchema.from_definition(made.table, made.definition), properties={})
        == schema()
    )


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"unique_key": "k"}, BadRequestError, "property unique_key of table default.t cannot be changed"),
        ({"landing": None}, BadRequestError, "comment, compaction, retention_s"),
        ({"colour": "red"}, BadRequestError, "colour"),
        ({}, BadRequestError, "changes nothing"),
        ({"comment": None}, BadRequestError, "changes nothing"),
        ({"to": "default.t"}, BadRequestError, "changes nothing"),
        ({"to": "no name"}, BadRequestError, "is not a table name"),
        ({"name": "u", "comment": "x"}, UnknownTableError, "default.u"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(
    known: Known, change: dict[str, str | None], error: type[TidelockError], word: str
) -> None:
    """With what is wrong, before anything is sent."""
    with pytest.raises(error, match=word):
        alter(known, **change)  # type: ignore[arg-type]


SALES = TableName("sales.")


def test_a_namespace_is_defined_like_a_table_that_no_table_can_be(known: Known) -> None:
    """It exists once, also without tables; each time that it is created again it gets an id of its own."""
    [made] = definitions.founding(SALES, {"comment": "x"}, known)
    assert (type(made), made.table, made.definition["columns"]) == (ChangeTable, "sales.", [])
    known.apply(made)
    assert known.names() == {ID: T}
    with pytest.raises(BadRequestError, match="sales exists already"):
        definitions.founding(SALES, {}, known)
    with pytest.raises(BadRequestError, match="known is comment"):
        definitions.founding(TableName("shop."), {"retention_s": "1"}, known)
    [gone] = definitions.clearing(SALES, known, cascade=False)
    known.apply(gone)
    with pytest.raises(BadRequestError, match="no namespace sales"):
        definitions.clearing(SALES, known, cascade=True)
    [again] = definitions.founding(SALES, {}, known)
    assert again.table == "sales.~2"


def test_a_namespace_is_dropped_with_its_tables_in_an_order_that_works(known: Known) -> None:
    """Derived tables go before their sources; a dependent elsewhere keeps the source, and the namespace."""
    known.apply(*definitions.founding(SALES, {}, known))
    known.apply(*definitions.creating(schema("sales.a"), known))
    known.apply(*definitions.creating(schema("sales.b", source="sales.a"), known))
    known.apply(*definitions.creating(schema("sales.c", source="sales.b"), known))
    with pytest.raises(BadRequestError, match=r"has tables: sales\.a, sales\.b, sales\.c"):
        definitions.clearing(SALES, known, cascade=False)
    known.apply(*definitions.creating(schema("d", source="sales.c"), known))
    with pytest.raises(BadRequestError, match=r"derived from sales\.\w+, which"):
        definitions.clearing(SALES, known, cascade=True)
    known.apply(*definitions.dropping(TableName("default.d"), known))
    known.apply(*definitions.clearing(SALES, known, cascade=True))
    assert known.names() == {ID: T}
    assert known.bearer(SALES) is None
    with pytest.raises(BadRequestError, match="always exists"):
        definitions.clearing(TableName("default."), known, cascade=True)


def test_a_dropped_table_comes_back_at_its_source(known: Known) -> None:
    """With the next version of its id; a name that is taken, and a source that is gone, refuse it."""
    known.apply(*alter(known, comment="kept"))
    [gone] = definitions.dropping(T, known)
    known.apply(gone)
    known.apply(*definitions.creating(schema(), known))
    with pytest.raises(TableExistsError, match="give another one"):
        definitions.undropping(gone, None, known)
    [back] = definitions.undropping(gone, full_name("old"), known)
    assert (type(back), back.table, back.version) == (ChangeTable, ID, gone.version + 1)
    assert back.definition["name"] == "default.old"
    assert "dropped" not in back.definition
    assert back.definition["properties"] == {"comment": "kept"}
    known.gone.discard(ID)
    known.apply(back)
    assert known.bearer(full_name("old")) == ID
    known.apply(*definitions.creating(schema("d", source="default.t"), known))
    ended, source = definitions.dropping(TableName("default.d"), known)
    known.apply(ended, source)
    returned, source = definitions.undropping(ended, None, known)
    assert (returned.table, source.definition["dependents"]) == ("default.d", ["default.d"])
    known.apply(*definitions.dropping(TableName("default.old"), known))
    with pytest.raises(BadRequestError, match=r"derived from default\.old, which does not exist"):
        definitions.undropping(ended, None, known)


@pytest.mark.parametrize("namespace", ["tidelock", "tx_load", "sales_tx_1", "sales_at_4217"])
def test_names_that_mean_something_else_to_spark_are_no_new_namespaces(known: Known, namespace: str) -> None:
    """A namespace that exists takes new tables; other names with these words are free."""
    with pytest.raises(BadRequestError, match="a new namespace cannot be"):
        definitions.creating(schema(f"{namespace}.t"), known)
    with pytest.raises(BadRequestError, match="a new namespace cannot be"):
        definitions.founding(TableName(f"{namespace}."), {}, known)
    known.tables[TableId("old")] = Last(0, schema(f"{namespace}.old"))
    assert definitions.creating(schema(f"{namespace}.t"), known)
    assert definitions.creating(schema("sales_at_home.t"), known)
