-- A library of Trifold 0.1: its tables, and what one person kept in them.
CREATE TABLE books (
    sha256 TEXT PRIMARY KEY,
    name TEXT NOT NULL DEFAULT '',
    file TEXT NOT NULL DEFAULT '',
    title TEXT NOT NULL DEFAULT '',
    author TEXT NOT NULL DEFAULT '',
    pages INTEGER NOT NULL DEFAULT 0,
    unit TEXT NOT NULL DEFAULT 'page',
    tokens INTEGER NOT NULL DEFAULT 0,
    pages_read INTEGER NOT NULL DEFAULT 0,
    added REAL NOT NULL DEFAULT 0,
    opened REAL NOT NULL DEFAULT 0
);
CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    book TEXT NOT NULL REFERENCES books (sha256) ON DELETE CASCADE,
    name TEXT NOT NULL DEFAULT '',
    begun REAL NOT NULL,
    changed REAL NOT NULL,
    chosen INTEGER
);
CREATE INDEX chats_of_book ON chats (book, changed);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    parent INTEGER REFERENCES messages (id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('question', 'answer')),
    text TEXT NOT NULL DEFAULT '',
    written REAL NOT NULL,
    chosen INTEGER,
    stopped TEXT,
    pages_read INTEGER NOT NULL DEFAULT 0,
    figures TEXT,
    stages TEXT,
    notes TEXT,
    trouble TEXT
);
CREATE INDEX messages_of_chat ON messages (chat, parent);
CREATE INDEX messages_of_parent ON messages (parent);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = 'messages', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TRIGGER messages_added AFTER INSERT ON messages BEGIN
    INSERT INTO words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER messages_changed AFTER UPDATE OF text ON messages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text);
    INSERT INTO words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER messages_removed AFTER DELETE ON messages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TABLE "app_state" (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO books (sha256, name, file, title, author, pages, unit, tokens, pages_read, added, opened) VALUES ('a99d8fed2f2d65d0e6d28eafbc9838e641a0ecf3a41e03158de7d93a56d993b3', 'Lamps.txt', 'book.txt', 'Lamps', '', 2, 'section', 21, 2, 1795678751.6713514, 1795678751.9016874);
INSERT INTO chats (id, book, name, begun, changed, chosen) VALUES ('cWUWmUrkuQY0', 'a99d8fed2f2d65d0e6d28eafbc9838e641a0ecf3a41e03158de7d93a56d993b3', 'Lights', 1795678751.6721168, 1795678751.9493225, 1);
INSERT INTO chats (id, book, name, begun, changed, chosen) VALUES ('nwA7M5pCuBHz', 'a99d8fed2f2d65d0e6d28eafbc9838e641a0ecf3a41e03158de7d93a56d993b3', '', 1795678751.9495156, 1795678751.9510288, 9);
INSERT INTO messages (id, chat, role, text, written, chosen, pages_read) VALUES (1, 'cWUWmUrkuQY0', 'question', 'Who kept the north light?', 1795678751.9325132, 2, 0);
INSERT INTO messages (id, chat, parent, role, text, written, chosen, stopped, pages_read, figures, stages, notes) VALUES (2, 'cWUWmUrkuQY0', 1, 'answer', 'Maren Holt kept “the north light”.', 1795678751.9325132, 5, 'end', 0, '{"mode":"hierarchical","answer_tokens":6,"rounds":1,"ttft_s":0.42,"ms_per_token_mean":14.2,"ms_per_token_p50":13.1,"ms_per_token_p95":22.7,"tokens_per_s":70.42253521126761,"middle":{"accepted":62,"proposed":100},"verify":{"accepted":96,"proposed":100},"mean_acceptance_length":7.8,"plain_ms":41.0,"speedup_vs_plain":2.887323943661972,"time_split":{"draft":120.0,"middle":160.0,"verify":240.0,"transfer":30.0,"other":18.0},"kv_bytes":{"device":9663676416,"host":7516192768,"disk":0,"cards":[]},"prompt_tokens":28450,"prefilled_tokens":38,"context_tokens":28490,"context_limit":32768,"lookup":{"accepted":0,"proposed":0},"plain_steps":5,"plain_age_s":2.5}', 'dddrll', '{"v":1,"unit":"section","ink":"D13R3L10","chips":[{"kind":"quoted","at":34,"from":16,"pages":[{"number":1,"label":"CHAPTER 1"}],"marks":[[1,27,42]],"extract":{"before":"CHAPTER 1 Maren Holt kept ","hit":"the north light","after":"."}}],"made":{"model":"Storyteller 27M","draft":"Storyteller 3M","mode":"hierarchical","temperature":0.7,"top_p":1.0,"top_k":null,"repetition_penalty":null,"exact_quotes":null,"max_tokens":64,"seed":null,"own":[]},"uncounted":""}');
INSERT INTO messages (id, chat, parent, role, text, written, chosen, pages_read) VALUES (3, 'cWUWmUrkuQY0', 2, 'question', 'And after her?', 1795678751.9377444, 4, 0);
INSERT INTO messages (id, chat, parent, role, text, written, stopped, pages_read, figures, stages, notes) VALUES (4, 'cWUWmUrkuQY0', 3, 'answer', 'She was followed by Tobias Wren.', 1795678751.9377444, 'end', 0, '{"mode":"hierarchical","answer_tokens":6,"rounds":1,"ttft_s":0.42,"ms_per_token_mean":14.2,"ms_per_token_p50":13.1,"ms_per_token_p95":22.7,"tokens_per_s":70.42253521126761,"middle":{"accepted":62,"proposed":100},"verify":{"accepted":96,"proposed":100},"mean_acceptance_length":7.8,"plain_ms":41.0,"speedup_vs_plain":2.887323943661972,"time_split":{"draft":120.0,"middle":160.0,"verify":240.0,"transfer":30.0,"other":18.0},"kv_bytes":{"device":9663676416,"host":7516192768,"disk":0,"cards":[]},"prompt_tokens":28450,"prefilled_tokens":38,"context_tokens":28490,"context_limit":32768,"lookup":{"accepted":0,"proposed":0},"plain_steps":5,"plain_age_s":2.5}', 'dddrll', '{"v":1,"unit":"section","ink":"D14R2L10","chips":[],"made":{"model":"Storyteller 27M","draft":"Storyteller 3M","mode":"hierarchical","temperature":0.0,"top_p":1.0,"top_k":null,"repetition_penalty":null,"exact_quotes":null,"max_tokens":512,"seed":null,"own":[]},"uncounted":""}');
INSERT INTO messages (id, chat, parent, role, text, written, chosen, pages_read) VALUES (5, 'cWUWmUrkuQY0', 2, 'question', 'And before her?', 1795678751.9403327, 6, 0);
INSERT INTO messages (id, chat, parent, role, text, written, chosen, stopped, pages_read, figures, stages, notes) VALUES (6, 'cWUWmUrkuQY0', 5, 'answer', 'She was followed by Tobias Wren.', 1795678751.9403327, 7, 'end', 0, '{"mode":"hierarchical","answer_tokens":6,"rounds":1,"ttft_s":0.42,"ms_per_token_mean":14.2,"ms_per_token_p50":13.1,"ms_per_token_p95":22.7,"tokens_per_s":70.42253521126761,"middle":{"accepted":62,"proposed":100},"verify":{"accepted":96,"proposed":100},"mean_acceptance_length":7.8,"plain_ms":41.0,"speedup_vs_plain":2.887323943661972,"time_split":{"draft":120.0,"middle":160.0,"verify":240.0,"transfer":30.0,"other":18.0},"kv_bytes":{"device":9663676416,"host":7516192768,"disk":0,"cards":[]},"prompt_tokens":28450,"prefilled_tokens":38,"context_tokens":28490,"context_limit":32768,"lookup":{"accepted":0,"proposed":0},"plain_steps":5,"plain_age_s":2.5}', 'dddrll', '{"v":1,"unit":"section","ink":"D14R2L10","chips":[],"made":{"model":"Storyteller 27M","draft":"Storyteller 3M","mode":"hierarchical","temperature":0.0,"top_p":1.0,"top_k":null,"repetition_penalty":null,"exact_quotes":null,"max_tokens":512,"seed":null,"own":[]},"uncounted":""}');
INSERT INTO messages (id, chat, parent, role, text, written, chosen, pages_read) VALUES (7, 'cWUWmUrkuQY0', 6, 'question', 'Why?', 1795678751.944957, 8, 0);
INSERT INTO messages (id, chat, parent, role, text, written, stopped, pages_read, figures, stages, notes, trouble) VALUES (8, 'cWUWmUrkuQY0', 7, 'answer', 'She was followed', 1795678751.944957, 'cancelled', 0, '{"mode":"plain","answer_tokens":3,"rounds":1,"ttft_s":0.42,"ms_per_token_mean":41.0,"ms_per_token_p50":13.1,"ms_per_token_p95":22.7,"tokens_per_s":24.390243902439025,"middle":{"accepted":62,"proposed":100},"verify":{"accepted":96,"proposed":100},"mean_acceptance_length":7.8,"plain_ms":41.0,"speedup_vs_plain":1.0,"time_split":{"draft":120.0,"middle":160.0,"verify":240.0,"transfer":30.0,"other":18.0},"kv_bytes":{"device":9663676416,"host":7516192768,"disk":0,"cards":[]},"prompt_tokens":28450,"prefilled_tokens":38,"context_tokens":28490,"context_limit":32768,"lookup":{"accepted":0,"proposed":0},"plain_steps":5,"plain_age_s":2.5}', 'ttt', '{"v":1,"unit":"section","ink":"T14","chips":[],"made":{"model":"Storyteller 27M","draft":null,"mode":"plain","temperature":0.0,"top_p":1.0,"top_k":null,"repetition_penalty":null,"exact_quotes":null,"max_tokens":512,"seed":3,"own":[]},"uncounted":"repeats"}', '["The memory ran out.","Read fewer pages."]');
INSERT INTO messages (id, chat, role, text, written, chosen, pages_read) VALUES (9, 'nwA7M5pCuBHz', 'question', 'Another chat?', 1795678751.9496357, 10, 0);
INSERT INTO messages (id, chat, parent, role, text, written, stopped, pages_read, figures, stages, notes) VALUES (10, 'nwA7M5pCuBHz', 9, 'answer', 'One question more, in another chat.', 1795678751.9496357, 'end', 0, '{"mode":"hierarchical","answer_tokens":6,"rounds":1,"ttft_s":0.42,"ms_per_token_mean":14.2,"ms_per_token_p50":13.1,"ms_per_token_p95":22.7,"tokens_per_s":70.42253521126761,"middle":{"accepted":62,"proposed":100},"verify":{"accepted":96,"proposed":100},"mean_acceptance_length":7.8,"plain_ms":41.0,"speedup_vs_plain":2.887323943661972,"time_split":{"draft":120.0,"middle":160.0,"verify":240.0,"transfer":30.0,"other":18.0},"kv_bytes":{"device":9663676416,"host":7516192768,"disk":0,"cards":[]},"prompt_tokens":28450,"prefilled_tokens":38,"context_tokens":28490,"context_limit":32768,"lookup":{"accepted":0,"proposed":0},"plain_steps":5,"plain_age_s":2.5}', 'dddrll', '{"v":1,"unit":"section","ink":"D15R2L11","chips":[],"made":{"model":"Storyteller 27M","draft":"Storyteller 3M","mode":"hierarchical","temperature":0.0,"top_p":1.0,"top_k":null,"repetition_penalty":null,"exact_quotes":null,"max_tokens":512,"seed":null,"own":[]},"uncounted":""}');
INSERT INTO app_state (name, value) VALUES ('open', '["a99d8fed2f2d65d0e6d28eafbc9838e641a0ecf3a41e03158de7d93a56d993b3","nwA7M5pCuBHz",true]');
PRAGMA user_version = 2;
