// What comes with the first press on Differences, in a file of its own: two versions as pictures, and what differs.
import "./compared.css";

export { TwoPictures } from "../graph/twins";
export { ChangesPanel } from "./changes";
