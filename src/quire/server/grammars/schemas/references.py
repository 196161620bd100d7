"""References of JSON schemas, which lead to a place in the schema: by a pointer, by the `$id` of a
schema in it, or by an anchor. Nothing is fetched.
"""

from collections.abc import Mapping
from urllib.parse import unquote, urldefrag, urljoin

from quire.server.errors import RequestError
from quire.server.grammars.schemas.keywords import SchemaNode, inner_schemas

MAX_PATH_CHARS = 200
_OLD_DRAFTS = ("draft-03", "draft-04")
_LONE_REFERENCES = (*_OLD_DRAFTS, "draft-06", "draft-07")
_NAMING = frozenset(("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"))


def invalid(path: str, why: str) -> RequestError:
    """Return the error for a schema that is wrong at a path."""
    shown = path[:MAX_PATH_CHARS]
    return RequestError(f"Invalid '{shown}': {why}.", param=shown)


def target_of(reference: str, root: object, path: str) -> object:
    """Return what a JSON pointer refers to (RFC 6901). Raises RequestError where it leads nowhere;
    `path` is where the reference stands."""
    found: object = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise invalid(path, f"leads nowhere: there is no {reference[:MAX_PATH_CHARS]!r}")
    return found


class References:
    """Follows the references of one schema, at the path `field`."""

    def __init__(self, root: Mapping[str, object], field: str) -> None:
        draft = root.get("$schema")
        named = draft if isinstance(draft, str) else ""
        self.stand_alone = any(each in named for each in _LONE_REFERENCES)
        """True in old drafts: keywords beside a reference say nothing."""
        self._id_keyword = "id" if any(each in named for each in _OLD_DRAFTS) else "$id"
        self._root = SchemaNode(root, field)
        self._resources = {"": self._root}
        self._anchors: dict[str, SchemaNode] = {}
        self._dynamic: dict[str, int] = {}
        self._bases: dict[int, str] = {}
        self._find_names()

    def _find_names(self) -> None:
        """Find the ids and the anchors of all schemas within this one."""
        waiting = [(self._root, "")]
        while waiting:
            node, base = waiting.pop()
            schema = node.schema
            if not isinstance(schema, dict) or id(schema) in self._bases:
                continue
            base = self._named(schema, node, base)
            self._bases[id(schema)] = base
            waiting += [(each, base) for each in inner_schemas(schema, node.path)]

    def _named(self, schema: Mapping[str, object], node: SchemaNode, base: str) -> str:
        """Note the names of a schema, and return the address that its references start from."""
        if schema.keys().isdisjoint(_NAMING):
            return base
        name = schema.get(self._id_keyword)
        if isinstance(name, str):
            address, anchor = urldefrag(_joined(base, name))
            if name.startswith("#"):
                self._anchors.setdefault(f"{base}#{anchor}", node)
            else:
                base = address
                self._resources.setdefault(address, node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor_name = schema.get(keyword)
            if isinstance(anchor_name, str):
                self._anchors.setdefault(f"{base}#{anchor_name}", node)
        dynamic = schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic[dynamic] = self._dynamic.get(dynamic, 0) + 1
        if schema.get("$recursiveAnchor") is True:
            self._dynamic[""] = self._dynamic.get("", 0) + 1
        return base

    def adopt(self, copy: object, original: object) -> None:
        """Let the references in a copy of a schema start from where those of the original do."""
        self._bases[id(copy)] = self._bases.get(id(original), "")

    def follow(self, holder: Mapping[str, object], path: str) -> SchemaNode | None:
        """Return what the `$ref` of a schema refers to, None where it leads out of the schema.
        Raises RequestError where it leads nowhere, or is no reference."""
        return self.find(holder["$ref"], holder, f"{path}.$ref")

    def find(self, reference: object, holder: object, path: str) -> SchemaNode | None:
        """Return what a reference in a schema refers to, as `follow` does."""
        if not isinstance(reference, str):
            raise invalid(path, "must be a reference, as '#/$defs/name'")
        base = self._bases.get(id(holder), "")
        address, fragment = urldefrag(_joined(base, reference))
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{address}#{unquote(fragment)}")
            if found is None and address in self._resources:
                raise invalid(path, f"leads nowhere: there is no {reference[:MAX_PATH_CHARS]!r}")
            return found
        resource = self._resources.get(address)
        if resource is None:
            return None
        found_schema = target_of(f"#{fragment}", resource.schema, path)
        steps = "".join(f".{part}" for part in fragment.split("/")[1:])
        return SchemaNode(found_schema, f"{resource.path}{steps}")

    def is_fixed(self, schema: Mapping[str, object], keyword: str) -> bool:
        """Return whether a dynamic reference has one place that it can lead to, so that it is a
        plain one."""
        reference = schema[keyword]
        name = "" if keyword == "$recursiveRef" else str(reference).rpartition("#")[2]
        return self._dynamic.get(name, 0) <= 1


def _joined(base: str, reference: str) -> str:
    """Return a reference as an address; a fragment goes with any base, such as a URN."""
    if reference.startswith("#"):
        return f"{base}{reference}"
    try:
        return urljoin(base, reference)
    except ValueError:  # brackets that hold no address
        return reference
