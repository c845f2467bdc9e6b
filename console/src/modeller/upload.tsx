import { useQueryClient } from "@tanstack/react-query";
import { engine } from "../api/client";
import { Dialog } from "../parts/dialog";
import type { Verdict } from "./check";
import { tidy } from "./edits";

interface Props {
  text: string;
  base: string;
  verdict: Verdict;
  done: (uploaded: { id: string; version: number }) => void;
  close: () => void;
}

export function UploadDialog({ text, base, verdict, done, close }: Props) {
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
      {check?.same !== undefined && <p>It is what version {check.same} has already: no new version comes of it.</p>}
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
