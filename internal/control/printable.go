package control

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

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
