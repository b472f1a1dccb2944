package trace

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"

	"symmem/event"
)

// Redact removes the name of the machine, call sites, file paths and stacks from the trace in b. It
// keeps other texts, such as the names of groups and values. It may remove words that follow a
// path, because paths may contain spaces. Errors wrap ErrFormat. After an error, b may be partly
// redacted.
func Redact(b []byte) error {
	if len(b) < headerBytes || !IsTrace(b) {
		return fmt.Errorf("%w: it has no header", ErrFormat)
	}

	h, err := parseHeader(b)
	if err != nil {
		return err
	}

	textsOffset := headerBytes + h.capacity*recordBytes
	if uint64(len(b)) != textsOffset+h.textSpaceBytes {
		return fmt.Errorf("%w: its size does not match its header", ErrFormat)
	}

	texts, err := parseTexts(b[textsOffset : textsOffset+h.usedTextBytes])
	if err != nil {
		return err
	}

	isUsed := make([]bool, len(texts)) // by text number
	for i := range h.capacity {
		record := b[headerBytes+i*recordBytes:][:recordBytes]
		redactRecord(record, isUsed)
	}

	textSpace := make([]byte, 0, h.usedTextBytes)
	for number, text := range texts {
		if number == 0 {
			continue // the empty text, which is not in the file
		}

		if !isUsed[number] {
			text = "" // only call sites refer to the text
		}

		text = withoutPaths(text)
		textSpace = binary.LittleEndian.AppendUint16(textSpace, uint16(len(text)))
		textSpace = append(textSpace, text...)
	}

	clear(b[offsetHost : offsetHost+maxHostBytes])
	clear(b[textsOffset:])
	copy(b[textsOffset:], textSpace) // not longer than before
	binary.LittleEndian.PutUint64(b[offsetUsedTextBytes:], uint64(len(textSpace)))
	return nil
}

// redactRecord removes a record's call site. For each other text that the record refers to, it sets
// the text's element of isUsed. The comment on payload in layout.go shows where the numbers of
// texts are.
func redactRecord(b []byte, isUsed []bool) {
	const offsetA, offsetC = 8, 24 // the words of the payload, after the head
	head := binary.LittleEndian.Uint64(b)
	kind := event.Kind(head >> kindShift)
	if kind == 0 { // the record is unused or incomplete
		clear(b[offsetA:])
		return
	}

	markUsed := func(textNumber uint64) {
		if textNumber < uint64(len(isUsed)) {
			isUsed[textNumber] = true
		}
	}
	sourceNumber := head >> sourceShift & mask16
	markUsed(sourceNumber)
	a := binary.LittleEndian.Uint64(b[offsetA:])
	c := binary.LittleEndian.Uint64(b[offsetC:])
	isSecond := head&isSecondFlag != 0
	switch {
	case isSecond && kind.IsGroupEvent():
		markUsed(a >> 32) // the name
	case isSecond:
		markUsed(c >> 32) // the name
	default:
		withoutSite := c & mask32
		if kind.IsGroupEvent() {
			markUsed(withoutSite) // the text of the event
		}

		binary.LittleEndian.PutUint64(b[offsetC:], withoutSite)
	}
}

var (
	// quotedPathPattern matches a quote and a path, without the quote at the end.
	quotedPathPattern = regexp.MustCompile(`"~?/(?:[^"\\]|\\.)*|'~?/(?:[^'\\]|\\.)*`)
	// pathPattern matches an unquoted path and the character before it. Paths may contain spaces,
	// so the match extends to the next quote or to the end.
	pathPattern = regexp.MustCompile(`(^|[^\w/"'])~?/[^\s":][^"]*`)
	// fileNamePattern matches file names that are followed by a line number.
	fileNamePattern = regexp.MustCompile(`[\w./~+-]+\.\w{1,4}:\d+`)
)

// withoutPaths replaces the paths in the first line with question marks. It drops the other lines,
// which may contain a stack. The result is never longer than the text.
func withoutPaths(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = quotedPathPattern.ReplaceAllStringFunc(text, func(path string) string {
		quote := path[:1]
		return quote + "?"
	})
	const separator = ": " // ends a path, so it is replaced in each part
	parts := strings.Split(text, separator)
	for i := range parts {
		parts[i] = pathPattern.ReplaceAllString(parts[i], "$1?")
	}

	return fileNamePattern.ReplaceAllString(strings.Join(parts, separator), "?")
}
