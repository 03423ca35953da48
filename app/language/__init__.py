"""The rules of languages: words, stems, numbers, and where sentences end."""
