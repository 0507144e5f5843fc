# sh leash.sh FOLDER PROGRAM ARGUMENT...
#
# Replaces itself with the program. Before that it starts a second process, which reads standard
# input; the test holds the other end of that pipe. When the second process reads a line, it exits.
# If the pipe closes without a line, the test was killed, so the second process kills the program
# and removes its folder.
folder=$1
shift
exec 3<&0 </dev/null
{ read -r _ <&3 || { kill -9 $$; rm -rf "$folder"; }; } >/dev/null 2>&1 &
exec 3<&-
exec "$@"
