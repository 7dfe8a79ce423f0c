"""The bodies of HTTP requests and answers, as clients, agents and peers exchange them.

May import: nothing of ours.
Entry points: a module for each subject, with frozen msgspec structs.
On failure: `msgspec.ValidationError` names the wrong field; the callers convert it to their errors.

A request with unknown fields is refused: an agent never ignores a part of a request. Unknown fields of an
answer are ignored: an old client can read the answers of a newer agent. A field without a default is present
in every answer. A field whose default is null, in a struct with `omit_defaults`, is left out if it has no
value.
"""
