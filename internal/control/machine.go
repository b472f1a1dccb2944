package control

import (
	"os"
	"strings"
)

const maxHostName = 64

// HostName returns the name of this machine, or "" if it is unknown.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}

	return MachineName(name)
}

// MachineName sanitizes a host name received from another rank.
func MachineName(name string) string {
	return strings.Join(strings.Fields(Printable(name[:min(len(name), maxHostName)])), "_")
}
