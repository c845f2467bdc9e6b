// Other tabs of this browser with the same draft: that they are there, and what they made of it.
import { useEffect, useState } from "react";
import { short } from "../parts/time";
import type { Clash } from "./history";

const CHANNEL = "penstock drafts";

interface Heard {
  what: "who" | "here" | "gone";
  place: string;
  /** Of the tab that speaks. */
  tab: string;
  since: number;
}

/** Since when another tab has it open; whoever has gone without a word is not asked for again before this one is seen anew. */
function useOtherTab(place: string): number | undefined {
  const [others, setOthers] = useState<ReadonlyMap<string, number>>(new Map());
  useEffect(() => {
    const [tab, since] = [`${Date.now()} ${Math.random()}`, Date.now()];
    const channel = new BroadcastChannel(CHANNEL);
    const say = (what: Heard["what"]) => channel.postMessage({ what, place, tab, since } satisfies Heard);
    channel.onmessage = ({ data }: MessageEvent<Heard>) => {
      if (data.place !== place) return;
      setOthers((before) => {
        const after = new Map(before);
        if (data.what === "gone") after.delete(data.tab);
        else after.set(data.tab, data.since);
        return after;
      });
      if (data.what === "who") say("here");
    };
    const seen = () => {
      if (document.hidden) return;
      setOthers(new Map());
      say("who");
    };
    const gone = () => say("gone");
    seen();
    addEventListener("pagehide", gone);
    addEventListener("pageshow", seen);
    document.addEventListener("visibilitychange", seen);
    return () => {
      gone();
      removeEventListener("pagehide", gone);
      removeEventListener("pageshow", seen);
      document.removeEventListener("visibilitychange", seen);
      channel.close();
    };
  }, [place]);
  return others.size ? Math.min(...others.values()) : undefined;
}

interface Props {
  place: string;
  clash: Clash | undefined;
  /** Goes on with this tab's text, or with the other's. */
  choose: (ours: boolean) => void;
}

export function OtherTabs({ place, clash, choose }: Props) {
  const since = useOtherTab(place);
  return (
    <div role="status" className="tabs-said">
      {clash ? (
        <p className="wrong">
          {clash.text === undefined ? "Another tab has uploaded this draft, or undone all of it" : "Another tab has changed this draft"} ({short(clash.since, false, true)}). What you change here is not kept until you choose:{" "}
          <button type="button" className="btn sm" onClick={() => choose(false)}>
            Take that one
          </button>{" "}
          <button type="button" className="btn sm" onClick={() => choose(true)}>
            Keep this one
          </button>
        </p>
      ) : (
        since !== undefined && <p className="mute">Open in another tab, too, since {short(since, false, true)}: what is changed there is told here.</p>
      )}
    </div>
  );
}
