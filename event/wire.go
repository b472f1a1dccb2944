package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrMalformed is wrapped by errors about bytes that do not encode an event or a call.
var ErrMalformed = errors.New("malformed event")

const (
	// MaxSiteBytes limits a call site, such as "train.py:12".
	MaxSiteBytes = 160

	bytesWithoutSite = 1 + 4 + 4 + 8 + 8 + 8 // see Append

	// MaxBytes is the largest size of an encoded event.
	MaxBytes = bytesWithoutSite + MaxSiteBytes
)

// Append appends the encoding of an event in a pool's history: the fields that ranks compare and
// the call site.
func Append(dst []byte, e *Event) []byte {
	dst = append(dst, byte(e.Kind))
	dst = binary.LittleEndian.AppendUint32(dst, e.Stream)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Segment))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Offset))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Size))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Requested))
	return append(dst, CleanSite(e.Site)...)
}

// Decode decodes bytes that [Append] has encoded. Errors wrap [ErrMalformed].
func Decode(b []byte) (Event, error) {
	if len(b) < bytesWithoutSite || len(b) > MaxBytes {
		return Event{}, fmt.Errorf("decoding an event of %d bytes: %w", len(b), ErrMalformed)
	}

	e := Event{
		Kind:      Kind(b[0]),
		Stream:    binary.LittleEndian.Uint32(b[1:]),
		Segment:   int32(binary.LittleEndian.Uint32(b[5:])),
		Offset:    int64(binary.LittleEndian.Uint64(b[9:])),
		Size:      int64(binary.LittleEndian.Uint64(b[17:])),
		Requested: int64(binary.LittleEndian.Uint64(b[25:])),
		Site:      string(b[bytesWithoutSite:]),
	}
	const noSegment = -1
	isNegative := e.Segment < noSegment || e.Offset < 0 || e.Size < 0 || e.Requested < 0
	if !e.Kind.InHistory() || isNegative {
		return Event{}, fmt.Errorf("decoding the event %+v: %w", e, ErrMalformed)
	}

	if e.Site != CleanSite(e.Site) {
		return Event{}, fmt.Errorf("decoding the call site %q: %w", e.Site, ErrMalformed)
	}

	return e, nil
}

// CleanSite returns the call site that Append encodes. It replaces invalid and unprintable
// characters with question marks, and drops the beginning of a site over [MaxSiteBytes].
func CleanSite(site string) string {
	replaceUnprintable := func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}

		return r
	}
	site = strings.Map(replaceUnprintable, site)
	if len(site) <= MaxSiteBytes {
		return site
	}

	site = site[len(site)-MaxSiteBytes:]
	return withoutPartialFirstRune(site)
}

func withoutPartialFirstRune(text string) string {
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}

	return text
}
