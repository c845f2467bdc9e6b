import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { textOf } from "../api/asks";
import { type DraftCheck, engine } from "../api/client";
import { Dialog } from "../parts/dialog";
import type { Verdict } from "./check";
import type { Draft } from "./draft";
import { tidy } from "./edits";

export interface Uploaded {
  id: string;
  version: number;
  /** The newest one of its id: another one where an older version has this text. */
  latest: number;
  /** Whether the version was there before. */
  same: boolean;
}

/** What an upload of a text makes that a version has already. */
export function sameText(version: number, latest: number): string {
  return `Version ${version} has this text already: nothing changes${version === latest ? "" : `, and version ${latest} stays the latest`}.`;
}

interface Props {
  text: string;
  base: string;
  draft: Draft;
  /** The version that it began from, and its id. */
  version: number | undefined;
  began: string;
  verdict: Verdict;
}

/** Whether nothing has to be told of an upload but which version comes of it. */
function isPlain({ text, base, draft, version, began, verdict: { check, stale } }: Props): boolean {
  return !stale && check?.valid === true && check.same === undefined && !isBehind(check, version, draft, began) && (text === base || tidy(text) !== tidy(base));
}

function isBehind({ latest, same }: DraftCheck, version: number | undefined, draft: Draft, began: string): boolean {
  return version !== undefined && latest !== undefined && latest !== version && same === undefined && draft.definition.id === began;
}

interface ButtonProps extends Props {
  disabled: boolean;
  /** Somebody looks at what differs: what is plain needs no dialog then. */
  compared: boolean;
  done: (uploaded: Uploaded) => void;
}

export function UploadButton({ disabled, compared, done, ...about }: ButtonProps) {
  const { text, verdict } = about;
  const queries = useQueryClient();
  /** Whether it is asked, and why the engine refused it before. */
  const [asked, ask] = useState<{ refused?: string }>();
  const [busy, setBusy] = useState(false);
  const plain = compared && isPlain(about);
  const act = async () => {
    const before = await engine.validate(text);
    const { id, version } = await engine.upload(text);
    await queries.invalidateQueries();
    await queries.prefetchQuery(textOf(id, undefined)); // what stands there now stays until its version can
    const same = before.same === version;
    done({ id, version, same, latest: same ? (before.latest ?? version) : version });
  };
  const actNow = async () => {
    setBusy(true);
    await act().catch((error: Error) => ask({ refused: error.message }));
    setBusy(false);
  };
  return (
    <>
      <button type="button" className="btn pri" disabled={disabled || busy} onClick={() => (plain ? void actNow() : ask({}))}>
        {plain ? `Upload as version ${(verdict.check?.latest ?? 0) + 1}` : "Upload…"}
      </button>
      {asked && <UploadDialog {...about} {...asked} act={act} close={() => ask(undefined)} />}
    </>
  );
}

interface DialogProps extends Props {
  refused?: string;
  act: () => Promise<void>;
  close: () => void;
}

function UploadDialog({ text, base, draft, version, began, verdict, refused, act, close }: DialogProps) {
  const { check } = verdict;
  return (
    <Dialog title="Upload this definition?" verb="Upload" act={act} close={close}>
      {refused !== undefined && <p className="refused">{refused}</p>}
      {check?.valid === false && <p>The engine finds {check.problems.length === 1 ? "a problem" : `${check.problems.length} problems`} and will refuse it.</p>}
      {check?.same !== undefined && (
        <p>
          {sameText(check.same, check.latest ?? check.same)}
          {check.latest !== check.same && ` New instances go on with that one. To run this text, start an instance with version ${check.same}, or change something small in it, such as its description, and upload that.`}
        </p>
      )}
      {check?.valid && check.same === undefined && (
        <p>
          <b className="mono">{draft.definition.id}</b> {check.latest === undefined ? "is new: this becomes its version 1." : `gets version ${check.latest + 1}.`}
        </p>
      )}
      {check && isBehind(check, version, draft, began) && (
        <p>
          This draft began from version {version}; version {check.latest} has been uploaded since, and what it changed is not in here.
        </p>
      )}
      {check?.same === undefined && text !== base && tidy(text) === tidy(base) && (
        <p>
          Only places in the picture have changed. They are kept in this browser without an upload, too; with one they are a new version.{" "}
          <button type="button" className="btn sm" onClick={close}>
            Keep in this browser
          </button>
        </p>
      )}
      {check?.same === undefined && <p>New instances take the new version. Those that run stay on theirs.</p>}
    </Dialog>
  );
}
