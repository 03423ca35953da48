"""What the program remembers: one SQLite file in the data folder with books, chats and their words.

``database`` owns the file and what happens when it cannot be written; ``schema`` its tables; ``tree`` the messages
of a chat with their versions; ``search`` finds words in all chats; ``export`` writes a chat for elsewhere. Knows no
page and no engine beyond its event records.
"""
