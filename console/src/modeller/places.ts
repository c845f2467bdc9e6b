// At which field of the panels something stands that the engine tells of a path.
import type { Draft } from "./draft";
import { FORM } from "./forms";
import { child, type Node, nodeAt, type Path, stringOf } from "./json";
import { COMMON, countsFor, DEFINITION, type Schema, STEP, usedBy } from "./language";

/** Of which kind the editor of a field is that has fields of its own. */
export function partsOf(schema: Schema): "items" | "members" | "rows" | undefined {
  if (schema.type === "array" && schema.items) return "items";
  if (schema.type !== "object") return undefined;
  return schema.properties ? "members" : typeof schema.additionalProperties === "object" ? "rows" : undefined;
}

/** The user task whose form it is in, and that the step is one. */
export function formOwner(draft: Pick<Draft, "definition">, path: Path): string | undefined {
  const [first, forms, id] = path;
  if (first !== "metadata" || forms !== "forms" || typeof id !== "string") return undefined;
  return draft.definition.steps.find((step) => step.id === id)?.type === "USER_TASK" ? id : undefined;
}

/** The path of the innermost field that is shown of what stands, or should stand, at a path: of a step `["steps", place]` itself, of the definition `[]`. */
export function fieldAt(draft: Draft, path: Path): Path {
  const [first, second, name] = path;
  if (first === "steps") {
    const step = typeof second === "number" ? child(child(draft.root, "steps"), second) : undefined;
    if (step === undefined) return [];
    const own = path.slice(0, 2);
    if (typeof name !== "string") return own;
    const shown = [...COMMON, ...usedBy(stringOf(child(step, "type")) ?? "")].includes(name) || child(step, name) !== undefined;
    if (!shown) return own;
    return [...own, name, ...inside(STEP.properties[name], child(step, name), path.slice(3))];
  }
  if (formOwner(draft, path) !== undefined) return [...path.slice(0, 3), ...inside(FORM, nodeAt(draft.root, path.slice(0, 3)), path.slice(3))];
  if (typeof first !== "string") return [];
  const known = first in DEFINITION.properties ? DEFINITION.properties[first] : undefined;
  return known === undefined && child(draft.root, first) === undefined ? [] : [first, ...inside(known, child(draft.root, first), path.slice(1))];
}

/** The part of a path that leads to a field of its own within one of this schema. */
function inside(schema: Schema | undefined, node: Node | undefined, path: Path): Path {
  const [key, ...rest] = path;
  if (schema === undefined || node === undefined || key === undefined) return [];
  const inner = child(node, key);
  switch (partsOf(schema)) {
    case "items":
      return inner === undefined ? [] : [key, ...inside(schema.items, inner, rest)];
    case "rows":
      return inner === undefined ? [] : [key, ...inside(schema.additionalProperties as Schema, inner, rest)];
    case "members": {
      const own = schema.properties![key];
      if (node.kind !== "object" || (inner === undefined && (own === undefined || !countsFor(own, stringOf(child(node, "type")))))) return [];
      return [key, ...inside(own, inner, rest)];
    }
    default:
      return [];
  }
}

/** Names a field also when steps before its own have come or gone. */
export function nameOfPlace(root: Node, path: Path): string {
  const id = path[0] === "steps" ? stringOf(nodeAt(root, [...path.slice(0, 2), "id"])) : undefined;
  return JSON.stringify(id === undefined ? path : ["steps", id, ...path.slice(2)]);
}
