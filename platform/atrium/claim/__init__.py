"""What papers claim, as files, and what data say of it: definitions, tables of outcomes, words."""
