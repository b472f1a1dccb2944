package control

import (
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
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

const maxPrintable = 1000

// Printable truncates text from another rank and replaces characters that would garble a terminal.
func Printable(text string) string {
	if len(text) > maxPrintable {
		text = text[:maxPrintable]
	}

	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}

		return r
	}, text)
}
