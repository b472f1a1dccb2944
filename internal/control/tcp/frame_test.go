package tcp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"symmem/driver"
)

// A frame is an encoded message. It begins with a header of 16 bytes:
//
//	offset  bytes
//	0       1      kind of the message
//	1       1      length of the track's name
//	2       2      reserved, always zero
//	4       4      size of the payload
//	8       8      step
//
// The name of the track and the payload follow. A track is a sequence of steps. In each step, a
// rank sends a message of kindPost. Its payload must have a certain size on some tracks.

// encodeFrame returns a frame with step 3 and a payload of four bytes.
func encodeFrame(k kind, t track) []byte {
	m := message{kind: k, track: t, step: 3, payload: []byte("here")}
	return m.encode()
}

// corruptFrame returns a valid frame in which replacement overwrites the bytes from offset.
func corruptFrame(offset int, replacement ...byte) []byte {
	frame := encodeFrame(kindPost, trackControl)
	copy(frame[offset:], replacement)
	return frame
}

// TestReadFrameRejectsInvalidHeaders reads frames with an invalid header, or with a payload whose
// size is not that of its kind and track. readFrame must return ErrProtocol.
func TestReadFrameRejectsInvalidHeaders(t *testing.T) {
	validFrame := encodeFrame(kindPost, trackControl)
	if _, err := readFrame(bytes.NewReader(validFrame)); err != nil {
		t.Fatalf("readFrame of a valid frame: got %v, want no error", err)
	}

	const reserved, payloadSize = 2, 4 // offsets
	for name, frame := range map[string][]byte{
		"no kind":                        encodeFrame(0, trackControl),
		"an unknown kind":                encodeFrame(kindLeave+1, trackControl),
		"no track":                       encodeFrame(kindPost, ""),
		"an unknown track":               encodeFrame(kindPost, "other"),
		"a nonzero first reserved byte":  corruptFrame(reserved, 1),
		"a nonzero second reserved byte": corruptFrame(reserved+1, 1),
		"a payload of 1 MiB and a byte":  corruptFrame(payloadSize, 1, 0, 0x10, 0), // little-endian
		"a payload of 4 GiB":             corruptFrame(payloadSize, 255, 255, 255, 255),

		// The payload of these frames has four bytes, which is wrong for all of them.
		"a digest of four bytes":          encodeFrame(kindPost, trackCompare),
		"values of four bytes":            encodeFrame(kindPost, valueTrack("a")),
		"a status of four bytes":          encodeFrame(kindStatus, ""),
		"a leave of four bytes":           encodeFrame(kindLeave, ""),
		"a failure of four bytes":         encodeFrame(kindFail, ""),
		"an acknowledgement with payload": encodeFrame(kindFailAck, ""),
		"a completion with payload":       encodeFrame(kindComplete, trackControl),

		// A report may have a payload of four bytes, but no track.
		"a report on a track": encodeFrame(kindReport, trackControl),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readFrame(bytes.NewReader(frame)); !errors.Is(err, ErrProtocol) {
				t.Errorf("readFrame returned error %v, want ErrProtocol", err)
			}
		})
	}
}

// TestReadFrameRejectsTruncatedFrames reads the first n bytes of a valid frame, for each n that is
// less than its length.
func TestReadFrameRejectsTruncatedFrames(t *testing.T) {
	validFrame := encodeFrame(kindPost, trackControl)
	for n := range validFrame {
		_, err := readFrame(bytes.NewReader(validFrame[:n]))
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("frame truncated to %d bytes: got %v, want io.EOF or io.ErrUnexpectedEOF",
				n, err)
		}
	}
}

// FuzzReadFrame reads frames from random bytes. If the message of a frame is encoded again, the
// result must be the same bytes. The test also applies the messages to a rankRecord, which holds
// the latest data from a rank. This must not panic.
func FuzzReadFrame(f *testing.F) {
	for _, m := range []message{
		{kind: kindPost, track: trackBackground, step: 1 << 40, payload: []byte("here")},
		{kind: kindPost, track: trackCompare, step: 1, payload: make([]byte, wordBytes)},
		{kind: kindReport},
		{kind: kindStatus, payload: make([]byte, statusBytes)},
		{kind: kindFail, payload: make([]byte, statusBytes)},
		{kind: kindFailAck},
		{kind: kindPost, track: valuePrefix + "a", step: 1, payload: make([]byte, 48)},
		{kind: kindComplete, track: valuePrefix + "a", step: 1},
		{kind: kindLeave, payload: bytes.Repeat([]byte{255}, statusBytes)},
	} {
		f.Add(m.encode())
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		var record rankRecord
		for {
			start := len(data) - r.Len()
			m, err := readFrame(r)
			if err != nil {
				return
			}

			end := len(data) - r.Len()
			frame := data[start:end]
			if got := m.encode(); !bytes.Equal(got, frame) {
				t.Fatalf("%+v is encoded as %x, want the bytes that were read, %x", m, got, frame)
			}

			if record.applyMessage(m, time.Now()) != nil {
				return
			}

			state := record.state(&waitState{}, time.Now())
			_ = state.String() // must not panic
		}
	})
}

// A status says in which call a rank waits, and since when. Clocks of machines differ, so the
// encoded status contains the age of the wait instead: the time from its begin until now. Decoding
// a status at the same time must return the same status.
func TestStatusRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0) // any time
		want := status{
			submitted:    rapid.Uint64().Draw(t, "submitted"),
			inCollective: rapid.Uint64().Draw(t, "inCollective"),
			operation:    driver.Operation(rapid.Byte().Draw(t, "operation")),
			inExchange:   rapid.Uint64().Draw(t, "inExchange"),
			since:        now,
		}
		isWaiting := want.inCollective != 0 || want.inExchange != 0
		if isWaiting {
			age := rapid.Int64Range(0, 1<<60).Draw(t, "age") // in nanoseconds; at most 36 years
			want.since = now.Add(-time.Duration(age))
		}

		got := decodeStatus(want.encode(now), now)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(status{})); diff != "" {
			t.Fatalf("the decoded status differs (-want +got):\n%s", diff)
		}
	})
}

// TestInvalidAgeIsNotInFuture decodes a status whose bytes are all 255. Its age would be negative
// as a time.Duration. The decoded wait must not begin in the future.
func TestInvalidAgeIsNotInFuture(t *testing.T) {
	now := time.Unix(1_000_000, 0) // any time
	allOnes := bytes.Repeat([]byte{255}, statusBytes)
	s := decodeStatus(allOnes, now)
	if s.since.After(now) {
		t.Errorf("since = %v, want a time no later than %v", s.since, now)
	}
}
