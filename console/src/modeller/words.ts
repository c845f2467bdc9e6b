// What expressions of a draft may say.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { type DraftCheck, engine } from "../api/client";
import type { Word } from "./context";
import type { Draft } from "./draft";
import { child, nodeAt, parse, stringOf } from "./json";

const WORDS_MAX = 2_000;

/** `given`: JSON text of the variables that they are tried with. Variables of runs that were, those that the draft itself sets or reads, then the language's functions. */
export function useWords(draft: Draft, check: DraftCheck | undefined, version: number | undefined, given: string): readonly Word[] {
  const id = draft.definition.id;
  const used = useQuery({
    queryKey: ["variables in use", id],
    queryFn: ({ signal }) => engine.variablesInUse(id, signal),
    enabled: version !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  const language = useQuery({ queryKey: ["expression language"], queryFn: ({ signal }) => engine.expressionLanguage(signal), staleTime: Number.POSITIVE_INFINITY, retry: false });
  return useMemo(() => {
    const found = new Map<string, Word>();
    const add = (word: Word) => {
      if (!found.has(word.name) && found.size < WORDS_MAX) found.set(word.name, word);
    };
    for (const one of used.data?.items ?? []) add({ name: one.name, call: false, note: `${one.types.join(" or ")}, in ${one.in} of ${used.data!.of} runs` });
    for (const item of child(draft.root, "steps")?.items ?? []) {
      for (const { key } of child(item, "transformations")?.members ?? []) add({ name: key, call: false, note: `set by ${stringOf(child(item, "id")) ?? "a step"}` });
      for (const name of ["as", "index", "into"]) {
        const own = stringOf(nodeAt(item, ["forEach", name]));
        if (own) add({ name: own, call: false, note: "of forEach" });
      }
    }
    for (const { key: step, value } of nodeAt(draft.root, ["metadata", "forms"])?.members ?? [])
      for (const { key } of nodeAt(value, ["schema", "properties"])?.members ?? []) add({ name: key, call: false, note: `of the form of ${step}` });
    for (const { key } of parse(given).members ?? []) add({ name: key, call: false, note: "of those to try with" });
    for (const name of check?.identifiers ?? []) add({ name, call: false, note: "variable" });
    const { functions = [], operators = [], words = [], methods = [] } = language.data ?? {};
    for (const [call, told] of [[true, functions], [false, operators]] as const)
      for (const { name, signature, text, example } of told) add({ name, call, note: signature, help: `${text}, such as ${example}`, operator: !call });
    for (const name of words) add({ name, call: false, note: "word", operator: true });
    return [...found.values(), ...methods.map((name) => ({ name, call: true, note: "of a date or a duration", method: true }))];
  }, [used.data, language.data, draft, check, given]);
}
