// SPDX-License-Identifier: Apache-2.0
// Names as a frame shows them: arguments and templates go first, then namespaces; only then is a name cut.
import { place, type Frames } from "./frames.ts";

/** Takes out balanced <...> and a trailing argument list; keeps <module>, <lambda>, operator<, (anonymous namespace). */
export function shortName(name: string): string {
  let s = name.replace(/^(void|auto|int|bool|unsigned long|long|double|float) (?=[\w:]+[<(])/, "");
  s = s.replace(/\((anonymous namespace|anonymous class|anonymous)\)::/g, "");
  if (!/^operator|::operator/.test(s)) {
    let out = "", depth = 0;
    for (let i = 0; i < s.length; i++) {
      const c = s[i];
      if (c === "<" && (depth || (i > 0 && /[\w~)\]]/.test(s[i - 1])))) depth++;
      else if (c === ">" && depth) depth--;
      else if (!depth) out += c;
    }
    if (!depth) s = out;
  }
  s = s.replace(/::h[0-9a-f]{16}$/, "").replace(/ \[clone [^\]]*\]/g, "");
  const args = s.indexOf("(");
  if (args > 0 && /\)( const)?$/.test(s)) s = s.slice(0, args);
  return s || name;
}

/** Drops leading namespaces until it fits; the last part stays. */
export function fitName(short: string, room: number): string {
  if (short.length <= room) return short;
  const parts = short.split("::");
  while (parts.length > 1 && parts.join("::").length > room) {
    // `call` or `apply` alone says nothing: there the class stays instead
    if (parts.length === 2 && /^(call|apply|pop|operator\(\)|run|invoke)$/.test(parts[1])) parts.pop();
    else parts.shift();
  }
  return parts.join("::");
}

export interface Label { text: string; place: string }
const EMPTY: Label = { text: "", place: "" };

/** `room` in characters. Fewer than three visible characters show none. */
export function labelFor(f: Frames, i: number, short: string, room: number): Label {
  if (room < 3) return EMPTY;
  const code = f.kind[i] === "native" || f.kind[i] === "cuda" || f.kind[i] === "cuda_api" || f.kind[i] === "collective" || f.kind[i] === "guessed";
  let text = code ? fitName(short, room) : short;
  if (text.length > room) {
    if (room < 4) return EMPTY;
    text = `${text.slice(0, room - 1)}…`;
    return { text, place: "" };
  }
  const where = place(f, i);
  if (!where || where === text) return { text, place: "" };
  const left = room - text.length - 2;
  if (where.length <= left) return { text, place: where };
  return { text, place: "" };
}
