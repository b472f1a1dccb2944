package trace

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"

	"symmem/event"
)

// Redact removes the name of the machine, call sites, file paths and stacks from the trace in b. It
// keeps other texts, such as the names of groups and values, but may remove words that follow a
// path, because paths may contain spaces. Errors wrap ErrFormat; b may then be partly redacted.
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
	isUsed := make([]bool, len(texts))
	for n := range h.capacity {
		redactRecord(b[headerBytes+n*recordBytes:][:recordBytes], isUsed)
	}
	textSpace := make([]byte, 0, h.usedTextBytes)
	for n, text := range texts[1:] {
		if !isUsed[n+1] {
			text = "" // only call sites refer to the text
		}
		text = withoutPaths(text)
		textSpace = append(binary.LittleEndian.AppendUint16(textSpace, uint16(len(text))), text...)
	}
	clear(b[offsetHost : offsetHost+maxHostBytes])
	clear(b[textsOffset:])
	copy(b[textsOffset:], textSpace)
	binary.LittleEndian.PutUint64(b[offsetUsed:], uint64(len(textSpace)))
	return nil
}

// redactRecord removes a record's call site, and sets isUsed for the other texts that it refers to.
func redactRecord(b []byte, isUsed []bool) {
	readUint64, writeUint64 := binary.LittleEndian.Uint64, binary.LittleEndian.PutUint64
	head := readUint64(b)
	if head == 0 || uint8(head>>kindShift) == 0 {
		clear(b[8:]) // the record is unused or incomplete
		return
	}
	markUsed := func(n uint64) {
		if n < uint64(len(isUsed)) {
			isUsed[n] = true
		}
	}
	markUsed(head >> sourceShift & (1<<16 - 1))
	isGroup := event.Kind(head >> kindShift).IsGroupEvent()
	lastWord := readUint64(b[24:])
	switch {
	case head&isSecondFlag != 0 && isGroup:
		markUsed(readUint64(b[8:]) >> 32)
	case head&isSecondFlag != 0:
		markUsed(lastWord >> 32)
	default:
		if isGroup {
			markUsed(lastWord & (1<<32 - 1))
		}
		writeUint64(b[24:], lastWord&(1<<32-1))
	}
}

// Paths may contain spaces, so pathPattern also matches the text that follows an unquoted path.
// fileNamePattern matches file names that are followed by a line number.
var (
	quotedPathPattern = regexp.MustCompile(`"~?/(?:[^"\\]|\\.)*|'~?/(?:[^'\\]|\\.)*`)
	pathPattern       = regexp.MustCompile(`(^|[^\w/"'])~?/[^\s":][^"]*`)
	fileNamePattern   = regexp.MustCompile(`[\w./~+-]+\.\w{1,4}:\d+`)
)

// withoutPaths replaces the paths in the first line with question marks. It drops the other lines,
// which may contain a stack. The result is never longer than the text.
func withoutPaths(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = quotedPathPattern.ReplaceAllStringFunc(text, func(path string) string {
		return path[:1] + "?"
	})
	const separator = ": " // ends a path
	parts := strings.Split(text, separator)
	for i := range parts {
		parts[i] = pathPattern.ReplaceAllString(parts[i], "$1?")
	}
	return fileNamePattern.ReplaceAllString(strings.Join(parts, separator), "?")
}
