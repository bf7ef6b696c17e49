0 round trips

