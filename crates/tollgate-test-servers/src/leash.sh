# sh leash.sh FOLDER PROGRAM ARGUMENT...
#
# Becomes the program. A second process waits on standard input, whose other end the test
# holds: a line lets go; the end of it without a line means that the test was killed, and
# then nobody else is left to end the program and to remove its folder.
folder=$1
shift
exec 3<&0 </dev/null
{ read -r _ <&3 || { kill -9 $$; rm -rf "$folder"; }; } >/dev/null 2>&1 &
exec 3<&-
exec "$@"
