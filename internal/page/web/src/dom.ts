// Creates elements and formats values. Texts of the data reach the page only as text nodes.

type Child = Node | string | null;
type Attributes = Record<string, string | number | boolean | ((e: Event) => void)>;

// h returns an element. Functions among the attributes become listeners.
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      node.addEventListener(name, value);
    } else if (typeof value === "boolean") {
      node.toggleAttribute(name, value);
    } else {
      node.setAttribute(name, String(value));
    }
  }
  node.append(...children.filter((c): c is Node | string => c !== null));
  return node;
}

// count formats an integer with thin spaces between thousands.
export function count(n: number): string {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
}

// plural formats a number of things.
export function plural(n: number, thing: string): string {
  return `${count(n)} ${thing}${n === 1 ? "" : "s"}`;
}

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// size formats a number of bytes with three digits.
export function size(bytes: number): string {
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit++;
  }
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
}

// time formats microseconds since 1970 as UTC.
export function time(micros: number): string {
  if (micros === 0 || Math.abs(micros) > 8.64e18 / 1000) {
    return "";
  }
  const whole = new Date(Math.floor(micros / 1000)).toISOString().slice(0, -1);
  return whole.replace("T", " ") + String(micros % 1000).padStart(3, "0") + " UTC";
}

// ranks formats a list of rank numbers, such as "ranks 0-2,5".
export function ranks(list: number[]): string {
  const sorted = [...list].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; ) {
    let k = i;
    while (k + 1 < sorted.length && sorted[k + 1] === sorted[k]! + 1) {
      k++;
    }
    parts.push(k > i ? `${sorted[i]}\u2013${sorted[k]}` : `${sorted[i]}`);
    i = k + 1;
  }
  return `rank${sorted.length === 1 ? "" : "s"} ${parts.join(", ")}`;
}
