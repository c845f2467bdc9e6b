// What expressions of a draft may say.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { type DraftCheck, engine } from "../api/client";
import type { Word } from "./context";
import type { Draft } from "./draft";
import { child, nodeAt, parse, stringOf } from "./json";

const WORDS_MAX = 2_000;

/** Variables of the newest runs of a definition. */
export function inUse(id: string) {
  return { queryKey: ["variables in use", id], queryFn: ({ signal }: { signal: AbortSignal }) => engine.variablesInUse(id, signal), staleTime: Number.POSITIVE_INFINITY, retry: false };
}

/** Variables that a draft sets itself, with what sets them. */
export function setBy(draft: Draft): Map<string, string> {
  const found = new Map<string, string>();
  const add = (name: string, by: string) => found.has(name) || found.set(name, by);
  for (const item of child(draft.root, "steps")?.items ?? []) {
    for (const { key } of child(item, "transformations")?.members ?? []) add(key, `set by ${stringOf(child(item, "id")) ?? "a step"}`);
    for (const name of ["as", "index", "into"]) {
      const own = stringOf(nodeAt(item, ["forEach", name]));
      if (own) add(own, "of forEach");
    }
  }
  for (const { key: step, value } of nodeAt(draft.root, ["metadata", "forms"])?.members ?? [])
    for (const { key } of nodeAt(value, ["schema", "properties"])?.members ?? []) add(key, `of the form of ${step}`);
  return found;
}

/** `given`: JSON text of the variables that they are tried with. Variables of runs that were, those that the draft itself sets or reads, then the language's functions. */
export function useWords(draft: Draft, check: DraftCheck | undefined, version: number | undefined, given: string): readonly Word[] {
  const id = draft.definition.id;
  const used = useQuery({ ...inUse(id), enabled: version !== undefined });
  const language = useQuery({ queryKey: ["expression language"], queryFn: ({ signal }) => engine.expressionLanguage(signal), staleTime: Number.POSITIVE_INFINITY, retry: false });
  return useMemo(() => {
    const found = new Map<string, Word>();
    const add = (word: Word) => {
      if (!found.has(word.name) && found.size < WORDS_MAX) found.set(word.name, word);
    };
    for (const one of used.data?.items ?? []) add({ name: one.name, call: false, note: `${one.types.join(" or ")}, in ${one.in} of ${used.data!.of} runs` });
    for (const [name, note] of setBy(draft)) add({ name, call: false, note });
    for (const { key } of parse(given).members ?? []) add({ name: key, call: false, note: "of those to try with" });
    for (const name of check?.identifiers ?? []) add({ name, call: false, note: "variable" });
    const { functions = [], operators = [], words = [], methods = [] } = language.data ?? {};
    for (const [call, told] of [[true, functions], [false, operators]] as const)
      for (const { name, signature, text, example } of told) add({ name, call, note: signature, help: `${text}, such as ${example}`, operator: !call });
    for (const name of words) add({ name, call: false, note: "word", operator: true });
    return [...found.values(), ...methods.map((name) => ({ name, call: true, note: "of a date or a duration", method: true }))];
  }, [used.data, language.data, draft, check, given]);
}
