package control

import (
	"os"
	"strings"
)

// maxHostName is the maximum length of a host name on Linux.
const maxHostName = 64

// HostName returns the name of this machine, for use in errors on other ranks. It returns "" if the
// name is unknown.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return MachineName(name)
}

// MachineName sanitizes a host name received from another rank: it truncates the name and replaces
// characters that do not belong in one.
func MachineName(name string) string {
	return strings.Join(strings.Fields(Printable(name[:min(len(name), maxHostName)])), "_")
}
