"""The performance model: what one step costs, how its passes follow one another, what tiles hold, how long it takes."""
