// What the modeller does to a text, without the page that shows it.
export { definitionOf, readDraft } from "./draft";
export * from "./edits";
export { pretty, set } from "./json";
export { STEP_TYPES } from "./language";
