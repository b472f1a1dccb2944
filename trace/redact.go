package trace

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"

	"symmem/event"
)

// Redact removes the name of the machine, call sites, file paths and stacks from the trace b. As
// paths can contain spaces, it may also remove words after a path. Errors wrap ErrFormat and leave
// b unchanged.
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

	redactedTexts := redactTexts(texts, isUsed)
	clear(b[offsetHost : offsetHost+maxHostBytes])
	clear(b[textsOffset:])
	copy(b[textsOffset:], redactedTexts)
	binary.LittleEndian.PutUint64(b[offsetUsedTextBytes:], uint64(len(redactedTexts)))
	return nil
}

// Offsets in a record.
const (
	offsetA    = 8  // of payload.a
	offsetC    = 24 // of payload.c
	offsetSite = 28 // in the upper half of payload.c
)

// redactRecord removes the call site from a record, and sets isUsed for its other texts.
func redactRecord(record []byte, isUsed []bool) {
	head := binary.LittleEndian.Uint64(record)
	kind := event.Kind(head >> kindShift & 0xff)
	if kind == 0 { // no event
		clear(record[offsetA:])
		return
	}

	markUsed := func(textNumber uint64) {
		if textNumber < uint64(len(isUsed)) {
			isUsed[textNumber] = true
		}
	}
	sourceName := head >> sourceShift & mask16
	markUsed(sourceName)
	isSecond := head&isSecondFlag != 0
	if isSecond {
		markUsed(nameNumber(kind, record))
		return
	}

	clear(record[offsetSite:])
	if kind.IsGroupEvent() {
		textNumber := binary.LittleEndian.Uint32(record[offsetC:])
		markUsed(uint64(textNumber))
	}
}

// nameNumber returns the text number of the name in an event's second record.
func nameNumber(kind event.Kind, record []byte) uint64 {
	if kind.IsGroupEvent() {
		return binary.LittleEndian.Uint64(record[offsetA:]) >> 32
	}

	return binary.LittleEndian.Uint64(record[offsetC:]) >> 32
}

// redactTexts redacts texts and encodes them for the trace, in at most their old size. Unused texts
// become empty, so that the others keep their numbers.
func redactTexts(texts []string, isUsed []bool) []byte {
	var encoded []byte
	for number := 1; number < len(texts); number++ { // text 0 is not in the file
		text := ""
		if isUsed[number] {
			text = withoutPaths(texts[number])
		}

		encoded = binary.LittleEndian.AppendUint16(encoded, uint16(len(text)))
		encoded = append(encoded, text...)
	}

	return encoded
}

var (
	// quotedPathPattern matches `"/my data/f` in `copying "/my data/f" failed`.
	quotedPathPattern = regexp.MustCompile(`"~?/(?:[^"\\]|\\.)*|'~?/(?:[^'\\]|\\.)*`)
	// pathPattern matches ` /my data/f failed` in `copying /my data/f failed`.
	pathPattern = regexp.MustCompile(`(^|[^\w/"'])~?/[^\s":][^"]*`)
	// fileNamePattern matches `train.py:12`.
	fileNamePattern = regexp.MustCompile(`[\w./~+-]+\.\w{1,4}:\d+`)
)

// withoutPaths replaces each path by "?". It returns only the first line, because the others may be
// a stack.
func withoutPaths(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	line = quotedPathPattern.ReplaceAllStringFunc(line, func(match string) string {
		quote := match[:1]
		return quote + "?"
	})
	const separator = ": " // ends a path
	parts := strings.Split(line, separator)
	for i := range parts {
		parts[i] = pathPattern.ReplaceAllString(parts[i], "$1?")
	}

	return fileNamePattern.ReplaceAllString(strings.Join(parts, separator), "?")
}
