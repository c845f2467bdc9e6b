// What the modeller that ships does to definitions: each line of standard input is the JSON of a text, each line of the
// output {wrong, edges}: what an edit changed beside what it is about, and the ways that the picture has.
import { createInterface } from "node:readline";

const core = await import(process.argv[2]);

for await (const line of createInterface({ input: process.stdin })) {
  const text = JSON.parse(line);
  const draft = core.readDraft(text);
  const ways = draft.edges.map(({ from, to, kind, label = "" }) => [from, to, kind, label]);
  process.stdout.write(`${JSON.stringify({ wrong: wrongWith(text, draft), edges: ways })}\n`);
}

function wrongWith(text, draft) {
  const wrong = [];
  const same = (what, found) => found === text || wrong.push(what);
  same("opened", draft.text);
  const ids = [...draft.places.keys()];
  const id = ids[text.length % ids.length];
  const place = draft.places.get(id);
  // There and back. An id is written anew, so without escapes.
  const back = core.renameStep(core.renameStep(text, id, "another id"), "another id", id);
  same("renamed and back", text.includes("\\u") && JSON.stringify(read(back)) === JSON.stringify(read(text)) ? text : back);
  // Of `metadata` that is there with nothing in it ({}, null, "") nothing is left once the places in it are gone.
  const tidied = draft.pins.size === 0 ? core.tidy(core.pin(text, new Map([[id, { x: 1.4, y: 2 }]]))) : text;
  const { metadata, ...rest } = read(text);
  const empty = "metadata" in read(text) && Object.keys(metadata ?? {}).length === 0;
  same("moved and tidied", empty && JSON.stringify(read(tidied)) === JSON.stringify(rest) ? text : tidied);
  const added = core.addStep(text, core.STEP_TYPES[text.length % core.STEP_TYPES.length]);
  const extra = [...core.readDraft(added.text).places.keys()].slice(ids.length);
  same("added and removed", core.removeSteps(added.text, extra, undefined));
  // One edit touches its step only.
  only("name", core.set(text, ["steps", place, "name"], "Another name"), [id]);
  const touched = draft.edges.filter((edge) => edge.from === id || edge.to === id).map((edge) => edge.from);
  for (const edge of draft.edges.filter((one) => one.from === id)) {
    only("way elsewhere", core.leadElsewhere(text, edge, ids[0]), [id]);
    only("way removed", core.disconnect(text, edge), [id]);
  }
  const renamed = core.readDraft(core.renameStep(text, id, "another id"));
  const naming = ids.filter((one) => one === id || JSON.stringify(stepText(text, draft, one)).includes(id));
  only("renamed", renamed.text, [...touched, ...naming], new Map([[id, "another id"]]));
  return wrong;

  function only(what, edited, of, called = new Map()) {
    const after = core.readDraft(edited);
    for (const one of ids) {
      if (of.includes(one)) continue;
      if (stepText(edited, after, called.get(one) ?? one) !== stepText(text, draft, one)) wrong.push(`${what} of ${id}: ${one}`);
    }
    const [head, tail] = [draft.root.members.find(({ key }) => key === "steps").value.start, draft.root.members.find(({ key }) => key === "steps").value.end];
    if (draft.pins.size > 0) return;
    if (!edited.startsWith(text.slice(0, head))) wrong.push(`${what} of ${id}: before the steps`);
    if (what !== "renamed" && !edited.endsWith(text.slice(tail))) wrong.push(`${what} of ${id}: after the steps`);
  }
}

function read(text) {
  return JSON.parse(text.replace(/^\ufeff/, ""));
}

function stepText(text, { root, places }, id) {
  const { start, end } = root.members.find(({ key }) => key === "steps").value.items[places.get(id)];
  return text.slice(start, end);
}
