"""One deletion on the live federation, from the claim of a request to its report and certificate."""
