// All state that matters is in the address: a link shows a colleague exactly this.
import { useCallback } from "react";
import { useSearchParams } from "wouter";

/** A part of a path; what is no text stays as it is. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** One parameter of the address, and a way to change several at once. An empty value takes a parameter out. */
export function useAddress(): [URLSearchParams, (changes: Record<string, string | undefined>, replace?: boolean) => void] {
  const [params, setParams] = useSearchParams();
  const change = useCallback(
    (changes: Record<string, string | undefined>, replace = false) =>
      setParams(
        (before) => {
          const after = new URLSearchParams(before);
          for (const [name, value] of Object.entries(changes)) value ? after.set(name, value) : after.delete(name);
          return after;
        },
        { replace },
      ),
    [setParams],
  );
  return [params, change];
}
