package trace

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"

	"symmem/event"
)

// A trace has a header, records and texts. A record consists of four words of 64 bits, and refers
// to texts by their numbers. For example, the record of an allocation refers to two texts: the name
// of the pool, and the call site "/home/me/train.py:12".
//
// Redact replaces the number of each call site by 0, the number of the empty text. If no record
// refers to the text "/home/me/train.py:12" any more, Redact makes this text empty. Texts to which
// records still refer can contain paths: "panic at /home/me/train.py:12" becomes "panic at ?".

// Redact removes the name of the machine, call sites, file paths and stacks from the trace in b.
//
// It keeps other texts, such as the names of groups. It may also remove words that follow a path,
// because paths can contain spaces. Errors wrap ErrFormat. After an error, b is unchanged.
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

	isUsed := make([]bool, len(texts)) // by text number; whether a redacted record refers to it
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

// Offsets in a record. The words a, b and c follow the head, which is the first word.
const (
	offsetA = 8
	offsetC = 24
)

// redactRecord removes the call site from a record. For each other text to which the record refers,
// it sets the text's element of isUsed.
//
// An event has one or two records. The upper half of word c is a call site in the first record. In
// the second one, it can be a name, such as that of a group.
func redactRecord(record []byte, isUsed []bool) {
	head := binary.LittleEndian.Uint64(record)
	kind := event.Kind(head >> kindShift) // of the event
	hasEvent := kind != 0                 // false if the record is unused or incomplete
	if !hasEvent {
		clear(record[offsetA:])
		return
	}

	markUsed := func(textNumber uint64) {
		isText := textNumber < uint64(len(isUsed)) // false for a text that was lost
		if isText {
			isUsed[textNumber] = true
		}
	}
	sourceNumber := head >> sourceShift & mask16
	markUsed(sourceNumber) // the source is the pool or group of the event
	isSecond := head&isSecondFlag != 0
	if isSecond {
		markUsed(nameNumber(kind, record))
		return
	}

	withoutSite := binary.LittleEndian.Uint64(record[offsetC:]) & mask32
	binary.LittleEndian.PutUint64(record[offsetC:], withoutSite)
	if kind.IsGroupEvent() {
		markUsed(withoutSite) // the number of the event's text
	}
}

// nameNumber returns the text number of the name in a second record.
func nameNumber(kind event.Kind, record []byte) uint64 {
	if kind.IsGroupEvent() {
		return binary.LittleEndian.Uint64(record[offsetA:]) >> 32
	}

	return binary.LittleEndian.Uint64(record[offsetC:]) >> 32
}

// redactTexts returns the texts in the form in which the file has them. It is at most as long as
// before. Unused texts become empty, so that the other texts keep their numbers.
func redactTexts(texts []string, isUsed []bool) []byte {
	var encoded []byte
	for number, text := range texts {
		if number == 0 {
			continue // the empty text, which is not in the file
		}

		if !isUsed[number] {
			text = ""
		}

		text = withoutPaths(text)
		encoded = binary.LittleEndian.AppendUint16(encoded, uint16(len(text)))
		encoded = append(encoded, text...)
	}

	return encoded
}

// Patterns of paths in texts.
var (
	// quotedPathPattern matches a quote and the path after it. The match ends before the next quote
	// of the same kind.
	quotedPathPattern = regexp.MustCompile(`"~?/(?:[^"\\]|\\.)*|'~?/(?:[^'\\]|\\.)*`)
	// pathPattern matches an unquoted path and the character before it. The match ends before the
	// next double quote or at the end of the text, because a path can contain spaces.
	pathPattern = regexp.MustCompile(`(^|[^\w/"'])~?/[^\s":][^"]*`)
	// fileNamePattern matches a file name and a line number, such as "train.py:12".
	fileNamePattern = regexp.MustCompile(`[\w./~+-]+\.\w{1,4}:\d+`)
)

// withoutPaths returns the first line of a text, with question marks in place of paths. The other
// lines may contain a stack. The result is never longer than the text.
func withoutPaths(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	line = quotedPathPattern.ReplaceAllStringFunc(line, func(match string) string {
		quote := match[:1]
		return quote + "?"
	})
	const separator = ": " // ends a path, so pathPattern is applied to each part
	parts := strings.Split(line, separator)
	for i := range parts {
		parts[i] = pathPattern.ReplaceAllString(parts[i], "$1?")
	}

	return fileNamePattern.ReplaceAllString(strings.Join(parts, separator), "?")
}
