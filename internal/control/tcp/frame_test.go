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

// encodeFrame encodes a message with a payload of four bytes.
func encodeFrame(k kind, t track) []byte {
	m := message{kind: k, track: t, step: 3, payload: []byte("here")}
	return m.encode()
}

// corruptFrame returns a valid frame in which replacement overwrites the bytes from offset. A frame
// begins with a header:
//
//	offset 0: kind, 1: length of the track's name, 2 and 3: reserved, 4: size of the payload
func corruptFrame(offset int, replacement ...byte) []byte {
	b := encodeFrame(kindPost, trackControl)
	copy(b[offset:], replacement)
	return b
}

// readFrame must reject a header before it reads a payload of the wrong size for its kind.
func TestReadFrameRejectsInvalidHeaders(t *testing.T) {
	validFrame := encodeFrame(kindPost, trackControl)
	if _, err := readFrame(bytes.NewReader(validFrame)); err != nil {
		t.Fatalf("readFrame of a valid frame: got %v, want no error", err)
	}

	for name, frame := range map[string][]byte{
		"no kind":                        encodeFrame(0, trackControl),
		"an unknown kind":                encodeFrame(kindLeave+1, trackControl),
		"no track":                       encodeFrame(kindPost, ""),
		"an unknown track":               encodeFrame(kindPost, "other"),
		"a nonzero first reserved byte":  corruptFrame(2, 1),
		"a nonzero second reserved byte": corruptFrame(3, 1),
		"a payload of 1 MiB and a byte":  corruptFrame(4, 1, 0, 0x10, 0), // in little-endian order
		"a payload of 4 GiB":             corruptFrame(4, 255, 255, 255, 255),

		// encodeFrame adds a payload of four bytes.
		"a digest of four bytes":          encodeFrame(kindPost, trackCompare),
		"values of four bytes":            encodeFrame(kindPost, valueTrack("a")),
		"a status of four bytes":          encodeFrame(kindStatus, ""),
		"a leave of four bytes":           encodeFrame(kindLeave, ""),
		"a failure of four bytes":         encodeFrame(kindFail, ""),
		"an acknowledgement with payload": encodeFrame(kindFailAck, ""),
		"a completion with payload":       encodeFrame(kindComplete, trackControl),
		"a report on a track":             encodeFrame(kindReport, trackControl),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readFrame(bytes.NewReader(frame)); !errors.Is(err, ErrProtocol) {
				t.Errorf("readFrame returned error %v, want ErrProtocol", err)
			}
		})
	}
}

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

// FuzzReadFrame checks that each message that readFrame returns is encoded as the bytes that
// readFrame has read. It also applies the messages to a rankRecord, which must not panic.
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
			if !bytes.Equal(m.encode(), data[start:end]) {
				t.Fatalf("%+v is not encoded as the bytes that were read, %x", m, data[start:end])
			}

			if record.applyMessage(m, time.Now()) != nil {
				return
			}

			state := record.state(&waitState{}, time.Now())
			_ = state.String() // must not panic
		}
	})
}

// A status says in which call a rank waits, and since when. It is encoded with the time since then,
// because clocks of machines differ.
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
			want.since = now.Add(-time.Duration(rapid.Int64Range(0, 1<<60).Draw(t, "age")))
		}

		got := decodeStatus(want.encode(now), now)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(status{})); diff != "" {
			t.Fatalf("the decoded status differs (-want +got):\n%s", diff)
		}
	})
}

// TestInvalidAgeIsNotInFuture decodes a duration that would be negative as a time.Duration.
func TestInvalidAgeIsNotInFuture(t *testing.T) {
	now := time.Unix(1_000_000, 0) // any time
	allOnes := bytes.Repeat([]byte{255}, statusBytes)
	s := decodeStatus(allOnes, now)
	if s.since.After(now) {
		t.Errorf("since = %v, want a time no later than %v", s.since, now)
	}
}
