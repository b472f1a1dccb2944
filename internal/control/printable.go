package control

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPrintable limits the length of a text from another rank, in bytes.
const maxPrintable = 1000

// Printable truncates another rank's text and replaces characters that would garble a terminal.
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
