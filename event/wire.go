package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrMalformed is returned for bytes that do not encode an event or a call.
var ErrMalformed = errors.New("malformed event")

const (
	// MaxSiteBytes limits a call site, in bytes.
	MaxSiteBytes = 160

	bytesWithoutSite = 1 + 4 + 4 + 8 + 8 + 8

	// MaxBytes is the maximum number of bytes that [Append] appends.
	MaxBytes = bytesWithoutSite + MaxSiteBytes
)

// Append appends the call site and the fields that ranks compare. e must be in a pool's history.
func Append(dst []byte, e *Event) []byte {
	dst = append(dst, byte(e.Kind))
	dst = binary.LittleEndian.AppendUint32(dst, e.Stream)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Segment))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Offset))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Size))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Requested))
	return append(dst, CleanSite(e.Site)...)
}

// Decode decodes the output of [Append], which must fill b. Errors wrap [ErrMalformed].
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
	if !e.Kind.InHistory() || e.Segment < -1 || e.Offset < 0 || e.Size < 0 || e.Requested < 0 {
		return Event{}, fmt.Errorf("decoding the event %+v: %w", e, ErrMalformed)
	}

	if e.Site != CleanSite(e.Site) {
		return Event{}, fmt.Errorf("decoding the call site %q: %w", e.Site, ErrMalformed)
	}

	return e, nil
}

// CleanSite returns the last [MaxSiteBytes] bytes of a call site, without characters that could
// garble a terminal, because sites may come from other ranks.
func CleanSite(site string) string {
	clean := func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}

		return r
	}
	site = strings.Map(clean, site)
	if len(site) <= MaxSiteBytes {
		return site
	}

	site = site[len(site)-MaxSiteBytes:]
	for len(site) > 0 && !utf8.RuneStart(site[0]) {
		site = site[1:]
	}

	return site
}
