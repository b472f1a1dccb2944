package control

import (
	"os"
	"strings"
)

// maxHostName is the longest host name of Linux.
const maxHostName = 64

// HostName returns the name of this machine, for the errors of other ranks.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "" // errors then contain only ranks
	}
	return MachineName(name)
}

// MachineName shortens the host name that another rank has sent, and replaces characters that do
// not belong in a name.
func MachineName(name string) string {
	return strings.Join(strings.Fields(Printable(name[:min(len(name), maxHostName)])), "_")
}
