"""The rules that the database itself keeps against any writer: triggers that refuse a change, one set per database.

A new ledger gets the tables of `schema.py` and these rules whole. One that exists is brought there by the revisions of
`migrations/`, so a change here comes with a revision that does the same.
"""

from collections.abc import Iterable, Iterator, Mapping

import sqlalchemy as sa

from server.ledger import schema
from server.ledger.records import APPROVED
from unlearning.requests import LEGAL_MOVES, WITHOUT_DELETION, Status

APPEND_ONLY = {
    "events": "sequence = NEW.sequence OR previous_hash = NEW.previous_hash",
    "exclusions": "request_number = NEW.request_number",
    "refusals": "sequence = NEW.sequence",
    "legal_moves": "from_status = NEW.from_status AND to_status = NEW.to_status",
}
"""The tables whose rows never change, each with the condition that a row is there already."""
IMMUTABLE = (
    *("number", "idempotency_key", "client_id", "method", "submitted_by", "submitted_role"),
    *("created_at", "num_samples", "received_on", "approvals_needed"),
)
IMMUTABLE_JSON = ("target", "parameters")

NO_SUCH_MOVE = (
    "OLD.status <> NEW.status AND "
    "NOT EXISTS (SELECT 1 FROM legal_moves WHERE from_status = OLD.status AND to_status = NEW.status)"
)
HAS_ENDED = (
    "EXISTS (SELECT 1 FROM requests WHERE number = OLD.request_number AND status IN "
    f"({', '.join(sorted(repr(str(status)) for status in WITHOUT_DELETION))}))"
)
ASKED_FOR_STAYS = "what a request asks for never changes"
SAMPLES_STAY = "the ids of samples never change"
TEXTS_STAY = "what was written is erased, not changed"
# {due_on}: how each database writes the day that the extension gives.
CHANGE_RULES = {
    "requests_extended_once": (
        "NEW.extended_days <> OLD.extended_days AND (OLD.extended_days <> 0 OR NEW.extended_days NOT BETWEEN 1 AND 60)",
        "a deadline is extended once, by 1 to 60 days",
    ),
    "requests_due_as_extended": (
        "{due_on} <> NEW.due_on",
        "a deadline moves by its extension only",
    ),
    "requests_held_wait": (
        "NEW.is_held AND NEW.status <> OLD.status AND NEW.status IN ('scheduled', 'unlearning')",
        "a request that is held does not begin",
    ),
    "requests_approved": (
        "NEW.status <> OLD.status AND NEW.status IN ('accepted', 'scheduled', 'unlearning') AND "
        "(SELECT COUNT(DISTINCT actor) FROM events WHERE request_number = NEW.number "
        f"AND kind = '{APPROVED}') < NEW.approvals_needed",
        "a request begins once enough people have accepted it",
    ),
    "requests_outcome_once": (
        "COALESCE(NEW.outcome, '') <> COALESCE(OLD.outcome, '') AND "
        f"(OLD.status = '{Status.COMPLETED}' OR NEW.status <> '{Status.COMPLETED}')",
        "an outcome comes with the completion",
    ),
}


def create_schema(connection: sa.Connection) -> None:
    """Create all tables in an empty database, with their rules and first rows."""
    schema.metadata.create_all(connection)
    moves = [
        {"from_status": str(source), "to_status": str(to)}
        for source, ends in LEGAL_MOVES.items()
        for to in ends
    ]
    connection.execute(sa.insert(schema.legal_moves), moves)
    connection.execute(sa.insert(schema.fence).values(id=1, token=0, holder=""))
    rules = _sqlite_rules() if connection.dialect.name == "sqlite" else _postgresql_rules()
    for rule in rules:
        connection.execute(sa.text(rule))


# SQLite: a trigger per rule


def _sqlite_rules() -> Iterator[str]:
    for table, same in APPEND_ONLY.items():
        message = f"{table} is append-only"
        yield _refuse(f"{table}_no_update", f"UPDATE ON {table}", "", message)
        yield _refuse(f"{table}_no_delete", f"DELETE ON {table}", "", message)
        # INSERT OR REPLACE would delete the old row without asking the triggers above.
        yield _refuse(f"{table}_no_replace", f"INSERT ON {table}", _is_there(table, same), message)
    yield _refuse(
        "legal_moves_no_insert", "INSERT ON legal_moves", "", "legal_moves changes by migration only"
    )
    yield from _sqlite_rules_of_requests()
    given_back = f"NEW.sample_ids IS NULL AND NEW.sha256 IS OLD.sha256 AND {HAS_ENDED}"
    erased = f"{_is_same(('number', 'kind', 'sha256'), 'IS')} AND NEW.salt IS NULL AND NEW.text IS NULL"
    for table, key, allowed, message in (
        ("request_samples", "request_number", given_back, SAMPLES_STAY),
        ("request_texts", "number", erased, TEXTS_STAY),
    ):
        whose = "NEW.request_number = OLD.request_number"
        yield _refuse(f"{table}_no_update", f"UPDATE ON {table}", f"NOT ({whose} AND {allowed})", message)
        yield _refuse(f"{table}_no_delete", f"DELETE ON {table}", "", message)
        yield _refuse(
            f"{table}_no_replace", f"INSERT ON {table}", _is_there(table, f"{key} = NEW.{key}"), message
        )


def _sqlite_rules_of_requests() -> Iterator[str]:
    yield _refuse(
        "requests_no_replace",
        "INSERT ON requests",
        _is_there(
            "requests",
            "number = NEW.number OR (idempotency_key = NEW.idempotency_key AND submitted_by = NEW.submitted_by "
            "AND submitted_role IS NEW.submitted_role)",
        ),
        "this request exists",
    )
    yield _refuse("requests_no_delete", "DELETE ON requests", "", "requests are never deleted")
    yield _refuse(
        "requests_start_received",
        "INSERT ON requests",
        "NEW.status <> 'received'",
        "a request starts as received",
    )
    yield _refuse("requests_legal_moves", "UPDATE ON requests", NO_SUCH_MOVE, "illegal move of a request")
    changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in (*IMMUTABLE, *IMMUTABLE_JSON))
    yield _refuse("requests_immutable", "UPDATE ON requests", changed, ASKED_FOR_STAYS)
    due_on = "date(OLD.due_on, (NEW.extended_days - OLD.extended_days) || ' days')"
    for name, (condition, message) in CHANGE_RULES.items():
        yield _refuse(name, "UPDATE ON requests", condition.format(due_on=due_on), message)


def _refuse(name: str, when: str, condition: str, message: str) -> str:
    """Return a trigger that refuses a change, only where the condition holds if there is one."""
    only = f"WHEN {condition} " if condition else ""
    return f"CREATE TRIGGER {name} BEFORE {when} {only}BEGIN SELECT RAISE(ABORT, '{message}'); END"


def _is_there(table: str, condition: str) -> str:
    return f"EXISTS (SELECT 1 FROM {table} WHERE {condition})"


def _is_same(columns: Iterable[str], equals: str) -> str:
    return " AND ".join(f"NEW.{name} {equals} OLD.{name}" for name in columns)


# PostgreSQL: a function per table


def _postgresql_rules() -> Iterator[str]:
    yield (
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% on % is refused: it is append-only', TG_OP, TG_TABLE_NAME
                 USING ERRCODE = 'check_violation';
        END $$
        """
    )
    for table in APPEND_ONLY:
        yield _refuse_statement(f"{table}_append_only", f"UPDATE OR DELETE OR TRUNCATE ON {table}")
    yield _refuse_statement("legal_moves_no_insert", "INSERT ON legal_moves")
    for table in ("requests", "request_samples", "request_texts"):
        yield _refuse_statement(f"{table}_no_delete", f"DELETE OR TRUNCATE ON {table}")

    changed = [f"OLD.{column} IS DISTINCT FROM NEW.{column}" for column in IMMUTABLE]
    changed += [f"OLD.{column}::text IS DISTINCT FROM NEW.{column}::text" for column in IMMUTABLE_JSON]
    due_on = "OLD.due_on + (NEW.extended_days - OLD.extended_days)"
    yield from _check_each_row(
        "requests", "INSERT", {"NEW.status <> 'received'": "a request starts as received"}
    )
    yield from _check_each_row(
        "requests",
        "UPDATE",
        {
            NO_SUCH_MOVE: "illegal move of a request",
            " OR ".join(changed): ASKED_FOR_STAYS,
            **{rule.format(due_on=due_on): message for rule, message in CHANGE_RULES.values()},
        },
    )
    given_back = f"{_is_same(('request_number', 'sha256'), '=')} AND NEW.sample_ids IS NULL AND {HAS_ENDED}"
    yield from _check_each_row("request_samples", "UPDATE", {f"NOT ({given_back})": SAMPLES_STAY})
    same = _is_same(("number", "request_number", "kind", "sha256"), "=")
    erased = f"{same} AND NEW.salt IS NULL AND NEW.text IS NULL"
    yield from _check_each_row("request_texts", "UPDATE", {f"NOT ({erased})": TEXTS_STAY})
    # PostgreSQL's statistics copy values of a column; those of what can be erased are off.
    for table, column in (
        ("request_texts", "text"),
        ("request_texts", "salt"),
        ("request_samples", "sample_ids"),
    ):
        yield (f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")


def _refuse_statement(name: str, when: str) -> str:
    """Return a trigger that refuses a change always."""
    return f"CREATE TRIGGER {name} BEFORE {when} FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"


def _check_each_row(table: str, when: str, rules: Mapping[str, str]) -> Iterator[str]:
    """Yield a trigger that refuses a change of a row where one of these conditions holds, each with its sentence."""
    name = f"check_{table}_{when.lower()}"
    checks = " ".join(
        f"IF {condition} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'; END IF;"
        for condition, message in rules.items()
    )
    yield f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {checks} RETURN NEW; END $$"
    yield f"CREATE TRIGGER {name} BEFORE {when} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
