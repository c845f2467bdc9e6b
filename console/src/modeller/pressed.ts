// What comes by a press: menus, questions, what is done with several steps at once. A file of its own.
export { AddMenu } from "./addmenu";
export { HangDialog, RemoveDialog } from "./asks";
export { OpenDialog } from "./opening";
export { SeveralPanel } from "./several";
