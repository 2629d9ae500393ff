"""The process that speaks to other hosts for the attached learners of one, which touch no network themselves."""
