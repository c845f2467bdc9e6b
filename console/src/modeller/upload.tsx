import { useQueryClient } from "@tanstack/react-query";
import { engine } from "../api/client";
import { Dialog } from "../parts/dialog";
import type { Verdict } from "./check";
import type { Draft } from "./draft";
import { tidy } from "./edits";

interface Props {
  text: string;
  base: string;
  draft: Draft;
  /** The version that it began from, and its id. */
  version: number | undefined;
  began: string;
  verdict: Verdict;
  done: (uploaded: { id: string; version: number }) => void;
  close: () => void;
}

export function UploadDialog({ text, base, draft, version, began, verdict, done, close }: Props) {
  const queries = useQueryClient();
  const { check } = verdict;
  const act = async () => {
    const made = await engine.upload(text);
    await queries.invalidateQueries();
    done({ id: made.id, version: made.version });
  };
  return (
    <Dialog title="Upload this definition?" verb="Upload" act={act} close={close}>
      {check?.valid === false && <p>The engine finds {check.problems.length === 1 ? "a problem" : `${check.problems.length} problems`} and will refuse it.</p>}
      {check?.same !== undefined && (
        <p>
          It is what version {check.same} of <b className="mono">{draft.definition.id}</b> has already: no new version comes of it.
        </p>
      )}
      {check?.valid && check.same === undefined && (
        <p>
          <b className="mono">{draft.definition.id}</b> {check.latest === undefined ? "is new: this becomes its version 1." : `gets version ${check.latest + 1}.`}
        </p>
      )}
      {version !== undefined && check?.latest !== undefined && check.latest !== version && check.same === undefined && draft.definition.id === began && (
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
      <p>New instances take the new version. Those that run stay on theirs.</p>
    </Dialog>
  );
}
