// Types for checking the page's scripts with `tsc --checkJs` (tests/app/web/test_scripts.py).

// Elements of frame.html have type any. The browser tests check that the ids exist.
interface ParentNode {
  querySelector(selectors: string): any;
  querySelectorAll(selectors: string): NodeListOf<any>;
}
interface Document {
  getElementById(id: string): any;
  readonly activeElement: any;
}
interface Element {
  closest(selectors: string): any;
  readonly firstElementChild: any;
  readonly lastElementChild: any;
}
interface EventTarget {
  closest(selectors: string): any;
}
interface Node {
  data: any;
  length: any;
}
interface Window {
  trifoldTheme: any;
  gradio_api_info: any;
}

// The parts of the live stream (app/web/live.py and the panels). Only changed parts are sent.
interface Share {
  part?: string;
  name?: string;
  share: number;
  text: string;
}
interface Trouble {
  cause: string;
  remedy: string;
}
interface Figures {
  line: string;
  brief: string;
  spark: string;
  split: Share[];
  kv: Share[];
  window: Share | null;
  middle: Share | null;
  verify: Share | null;
  lookup: Share | null;
  mode: string;
  [figure: string]: any; // other figures, keyed by data-figure in frame.html
}
interface RaceRun {
  [name: string]: any;
}
interface View {
  model: { state: string; line: string; detail: string; parts: string[]; here?: boolean; draft?: boolean };
  sampling: { own: Record<string, number>; own_after_thought: Record<string, number>; whose: string; can_quote: boolean; can_think: boolean };
  book: {
    stage: string;
    title: string;
    line: string;
    figures?: string;
    id?: string;
    author?: string;
    trouble: (Trouble & { action: string }) | null;
    choose: { lead: string; sentence: string; unit: string; pages: number; first: number; last: number } | null;
    warnings: string[];
    recognising: { line: string; part: number } | null;
    pictures: { line: string; found: boolean } | null;
  };
  map: { pages: number; unit: string; labels: string[] };
  pages_read: number;
  reading: { fraction: number; pages: number; where: string; pace: string } | null;
  read: string;
  hint: string;
  asking: boolean;
  asked_by: string;
  chat: { id: string; turns: number; last: number; record: string };
  figures: Figures | null;
  memory: Share[];
  pace: number[][];
  scores: number[];
  writing: { answer: number; whole: boolean; text: string; html?: string; at?: number; waiting?: string } | null;
  provenance: { turn: number; sources: any } | null;
  contents: string;
  documents: { id: string; title: string; called: string; file?: string; line: string; first: number; pages: number; colour: number }[];
  each: {
    question: string;
    running: boolean;
    line: string;
    done: number;
    left: number;
    unkept: boolean;
    at: string;
  };
  each_table: {
    whole: boolean;
    rows: {
      id: string;
      title: string;
      answer: string;
      error: string;
      missing: string;
      asked: boolean;
      near: boolean;
      recognised: string;
      first: boolean;
      places: { passage: string; pages: { number: number; name: string }[] }[];
    }[];
  };
  first: boolean;
  rates: string;
  others: { target: string; draft: string | null; words: string }[];
  books: any[];
  notes: { version: string; count: number; on_pages: number; asked: boolean };
  parts: { count: number; said: string; few: string; every: string; some: boolean; at_once: boolean };
  language: string;
  chats: { id: string; title: string; line: string }[];
  suggestions: string[];
  storage: string;
  paging: { book: string; first: number; numbers: number[] };
  setup: Partial<Trouble> & {
    stage: string;
    line?: string;
    part?: number | null;
    stoppable?: boolean;
    wanted?: any;
    away?: string;
    note?: string;
  };
  comments: boolean;
  pictures: boolean;
  source: string;
  race: {
    running: boolean;
    done: number;
    possible?: boolean;
    line?: string;
    question?: string;
    run?: any;
    trouble?: any;
  };
  verified: { line: string; detail: string } | null;
}

// What Debian's compiler (4.8) does not know yet; the declarations equal those of newer ones.
interface Array<T> {
  findLast(predicate: (value: T, index: number, array: T[]) => unknown): T | undefined;
}
interface Highlight extends Set<AbstractRange> {}
interface HighlightRegistry extends Map<string, Highlight> {}
declare var Highlight: { prototype: Highlight; new (...initialRanges: AbstractRange[]): Highlight };
declare namespace CSS {
  var highlights: HighlightRegistry;
}
