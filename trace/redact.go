package trace

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"

	"symmem/event"
)

// Redact removes the name of the machine, call sites, file paths and stacks from the trace in b. It
// keeps other texts, such as the names of groups and values. Errors wrap ErrFormat; b may then be
// partly redacted.
func Redact(b []byte) error {
	if len(b) < headerBytes || !IsTrace(b) {
		return fmt.Errorf("%w: it has no header", ErrFormat)
	}
	h, err := parseHeader(b)
	if err != nil {
		return err
	}
	end := headerBytes + h.capacity*recordBytes
	if uint64(len(b)) != end+h.room {
		return fmt.Errorf("%w: its size does not match its header", ErrFormat)
	}
	texts, err := parseTexts(b[end : end+h.used])
	if err != nil {
		return err
	}
	used := make([]bool, len(texts))
	for n := range h.capacity {
		redactRecord(b[headerBytes+n*recordBytes:][:recordBytes], used)
	}
	room := make([]byte, 0, h.used)
	for n, text := range texts[1:] {
		if !used[n+1] {
			text = "" // a call site
		}
		text = withoutPaths(text)
		room = append(binary.LittleEndian.AppendUint16(room, uint16(len(text))), text...)
	}
	clear(b[offsetHost : offsetHost+maxHost])
	clear(b[end:])
	copy(b[end:], room)
	binary.LittleEndian.PutUint64(b[offsetUsed:], uint64(len(room)))
	return nil
}

// redactRecord removes the call site from a record, and marks the texts to which the record refers.
func redactRecord(b []byte, used []bool) {
	get, put := binary.LittleEndian.Uint64, binary.LittleEndian.PutUint64
	head := get(b)
	if head == 0 || uint8(head>>kindShift) == 0 {
		clear(b[8:]) // unused or incomplete
		return
	}
	mark := func(n uint64) {
		if n < uint64(len(used)) {
			used[n] = true
		}
	}
	mark(head >> sourceShift & (1<<16 - 1))
	ofGroup := event.Kind(head >> kindShift).IsGroupEvent()
	last := get(b[24:])
	switch {
	case head&secondFlag != 0 && ofGroup:
		mark(get(b[8:]) >> 32)
	case head&secondFlag != 0:
		mark(last >> 32)
	default:
		if ofGroup {
			mark(last & (1<<32 - 1))
		}
		put(b[24:], last&(1<<32-1))
	}
}

// paths matches absolute paths, and file names that are followed by a line number.
var paths = regexp.MustCompile(`(^|[^\w/])~?/[^\s"'():,;\x00]+|[\w./~+-]+\.\w{1,4}:\d+`)

// withoutPaths returns the first line of a text, with paths replaced by question marks. Other lines
// may contain a stack. The result is never longer than the text.
func withoutPaths(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return paths.ReplaceAllString(text, "$1?")
}
