#!lua flags=no-writes
-- Say that the library is here, and what time it is.
return call('TIME')
