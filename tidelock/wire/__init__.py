"""The bodies of HTTP requests and answers, as clients, agents and peers exchange them.

May import: nothing of ours.
Entry points: a module for each subject, with frozen msgspec structs.
On failure: `msgspec.ValidationError` names the field that is wrong; the callers turn it into their errors.

A request refuses unknown fields: an agent never ignores what it was asked for. An answer ignores them: an old
client reads what a newer agent tells. A field without a default is there in every answer; one whose default
is null, in a struct with `omit_defaults`, is left out where there is nothing to tell.
"""
