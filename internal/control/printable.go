package control

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPrintable is how many bytes of a text another rank may have in a report.
const maxPrintable = 1000

// Printable makes a text of another rank fit for a report: it keeps its beginning, and replaces
// what would garble a terminal.
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
