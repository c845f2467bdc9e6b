// What is asked before a file takes the place of a draft.
import { Dialog } from "../parts/dialog";

interface Props {
  name: string;
  /** What it would take the place of, in words. */
  over: string;
  open: () => void;
  close: () => void;
}

export function OpenDialog({ name, over, open, close }: Props) {
  return (
    <Dialog title={`Open ${name} in place of this draft?`} verb="Open it" act={async () => open()} close={close}>
      <p>{over} Undo brings it back as long as this page is open; Export keeps it in a file.</p>
    </Dialog>
  );
}
