"""One screen per question an operator has. Screens load through the source and never write SQL."""
