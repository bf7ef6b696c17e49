-- Take away items whose time is over. ARGV: 1 how many at most. How many.
return sweep(now, ARGV[1])
