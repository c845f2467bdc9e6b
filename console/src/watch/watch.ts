// How pages are told what has changed. A tab that nobody sees is told nothing and asks nothing.
import { useEffect, useRef, useState } from "react";
import { EngineError, type Overview, type Readiness } from "../api/client";
import type { Reading } from "./leader";
import { tab } from "./tab";
import type { Told, Topic } from "./wants";

/** Nothing is watched while both are empty. */
export function useWatch(instances: string[], newerThan: string | undefined, told: (news: Told) => void): void {
  const latest = useRef(told);
  latest.current = told;
  const ids = instances.join(",");
  useEffect(() => {
    if (ids === "" && newerThan === undefined) return;
    return tab.watch(ids === "" ? [] : ids.split(","), newerThan, (news) => latest.current(news));
  }, [ids, newerThan]);
}

interface Followed<T> {
  data: T | undefined;
  error: EngineError | undefined;
}

/** Read every two seconds by one of all tabs. What was read stays while the engine does not answer. */
function useTopic<T>(topic: Topic): Followed<T> {
  const [reading, setReading] = useState<Reading>();
  const data = useRef<unknown>(undefined);
  useEffect(() => tab.follow(topic, setReading), [topic]);
  if (reading?.topic === topic && reading.data !== undefined) data.current = reading.data;
  const { error } = reading?.topic === topic ? reading : {};
  return { data: data.current as T | undefined, error: error && new EngineError(error.status, error.code, error.reason) };
}

export function useReadiness(): Followed<Readiness> {
  return useTopic("ready");
}

export function useOverview(range: string): Followed<Overview> {
  return useTopic(`overview ${range}`);
}
