package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrMalformed is returned for bytes that do not encode an event.
var ErrMalformed = errors.New("malformed event")

const (
	// MaxSiteBytes bounds a call site in a table and on the wire.
	MaxSiteBytes = 160

	// eventBytes is the encoded size of an event without its site: kind, stream, segment,
	// offset, size, requested.
	eventBytes = 1 + 4 + 4 + 8 + 8 + 8

	// MaxEventBytes is the maximum number of bytes that [AppendEvent] appends.
	MaxEventBytes = eventBytes + MaxSiteBytes
)

// AppendEvent appends the encoding of e and its resolved call site to dst. It omits the index of
// the site, which has no meaning on other ranks.
func AppendEvent(dst []byte, e Event, site string) []byte {
	dst = append(dst, byte(e.Kind))
	dst = binary.LittleEndian.AppendUint32(dst, e.Stream)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.Segment))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Offset))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Size))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Requested))
	return append(dst, capSite(site)...)
}

// DecodeEvent decodes the output of [AppendEvent]: b must be exactly one event. The event's Site is
// 0. Errors wrap [ErrMalformed].
func DecodeEvent(b []byte) (Event, string, error) {
	if len(b) < eventBytes || len(b) > MaxEventBytes {
		return Event{}, "", fmt.Errorf("decoding event of %d bytes: %w", len(b), ErrMalformed)
	}
	e := Event{
		Kind:      Kind(b[0]),
		Stream:    binary.LittleEndian.Uint32(b[1:]),
		Segment:   int32(binary.LittleEndian.Uint32(b[5:])),
		Offset:    int64(binary.LittleEndian.Uint64(b[9:])),
		Size:      int64(binary.LittleEndian.Uint64(b[17:])),
		Requested: int64(binary.LittleEndian.Uint64(b[25:])),
	}
	if !e.Kind.valid() || e.Segment < -1 || e.Offset < 0 || e.Size < 0 || e.Requested < 0 {
		return Event{}, "", fmt.Errorf("decoding event %+v: %w", e, ErrMalformed)
	}
	site := string(b[eventBytes:])
	if site != capSite(site) {
		return Event{}, "", fmt.Errorf("decoding call site %q: %w", site, ErrMalformed)
	}
	return e, site, nil
}

// capSite keeps the end of a site, with the file name and line, and replaces characters that would
// garble a terminal: sites come from peers and are printed in reports.
func capSite(site string) string {
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
