package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"symmem/driver"
)

// ErrProtocol is returned when the other side does not speak this protocol, or another version.
var ErrProtocol = errors.New("the rank does not speak symmem's protocol of control planes")

// kind says what a frame is.
type kind uint8

const (
	kindPost kind = iota + 1 // one step of a track
	// kindComplete: a step of a track that a rank which is about to fail had seen complete.
	kindComplete
	kindReport // a report on the fault lane
	kindStatus // what the rank is doing
	// kindFail: the rank has failed; its step is the control.Reason, and it holds the rank's status.
	kindFail
	kindFailAck // the rank knows that the other has failed
	kindLeave   // the rank leaves; holds its last status
)

// track names a sequence of steps that all ranks make together: those of a lane, the comparisons of
// calls, or those under one name of values.
type track string

const (
	trackControl    track = "control"
	trackBackground track = "background"
	trackCalls      track = "calls"
	// trackCompare carries the digests of calls that are compared.
	trackCompare track = "compare"
	// valuePrefix begins the tracks of values.
	valuePrefix = "value "
)

// laneTracks are the tracks of the lanes.
var laneTracks = [driver.LaneFault]track{
	driver.LaneControl: trackControl, driver.LaneBackground: trackBackground,
	driver.LaneCalls: trackCalls,
}

// bounds gives the least and the greatest size of what a rank posts in a step.
func (t track) bounds() (least, most int, ok bool) {
	switch {
	case t == trackCompare:
		return wordBytes, wordBytes, true
	case strings.HasPrefix(string(t), valuePrefix):
		return len(driver.Words{}) * wordBytes, len(driver.Words{}) * wordBytes, true
	default:
		return 0, driver.MaxPayload, slices.Contains(laneTracks[:], t)
	}
}

const (
	// headerBytes is a frame without its track and its payload: kind, the size of the track's name,
	// two zeros, the payload's size in four bytes, the step in eight. All integers are little-endian.
	headerBytes = 16
	wordBytes   = 8
	statusBytes = 5 * wordBytes
)

// message is one frame.
type message struct {
	kind  kind
	track track
	step  uint64
	// payload holds what the kind says; it is owned by the message.
	payload []byte
}

// fits reports whether a message of the kind and of the track, if it has one, may have a payload of
// that size.
func (m *message) fits(size int) bool {
	least, most, ok := 0, 0, m.track == ""
	switch m.kind {
	case kindPost:
		least, most, ok = m.track.bounds()
	case kindComplete:
		_, _, ok = m.track.bounds()
	case kindReport:
		most = driver.MaxPayload
	case kindStatus, kindFail, kindLeave:
		least, most = statusBytes, statusBytes
	case kindFailAck:
	default:
		return false
	}
	return ok && least <= size && size <= most
}

// encode makes the frame of a message.
func (m *message) encode() []byte {
	b := make([]byte, 0, headerBytes+len(m.track)+len(m.payload))
	b = append(b, byte(m.kind), byte(len(m.track)), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.payload)))
	b = binary.LittleEndian.AppendUint64(b, m.step)
	b = append(b, m.track...)
	return append(b, m.payload...)
}

// receive reads one frame. It checks each part before it reads the next.
func receive(r io.Reader) (message, error) {
	var b [headerBytes + math.MaxUint8]byte
	if _, err := io.ReadFull(r, b[:headerBytes]); err != nil {
		return message{}, err
	}
	m := message{kind: kind(b[0]), step: binary.LittleEndian.Uint64(b[8:])}
	size := binary.LittleEndian.Uint32(b[4:])
	if b[2] != 0 || b[3] != 0 || size > driver.MaxPayload {
		return message{}, fmt.Errorf("a frame of kind %d and %d bytes: %w", m.kind, size, ErrProtocol)
	}
	name := b[headerBytes:][:b[1]]
	if _, err := io.ReadFull(r, name); err != nil {
		return message{}, err
	}
	if m.track = track(name); !m.fits(int(size)) {
		return message{}, fmt.Errorf("a frame of kind %d, track %q and %d bytes: %w",
			m.kind, m.track, size, ErrProtocol)
	}
	m.payload = make([]byte, size)
	if _, err := io.ReadFull(r, m.payload); err != nil {
		return message{}, err
	}
	return m, nil
}

// encodeWords writes numbers, and decodeWords reads as many as there is room for.
func encodeWords(words ...uint64) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, words) // of fixed size, which cannot fail
	return b
}

func decodeWords(b []byte, words []uint64) {
	_, _ = binary.Decode(b, binary.LittleEndian, words) // of the right size, which was checked
}

// status says what a rank is doing.
type status struct {
	// submitted counts the collectives that the rank has launched.
	submitted uint64
	// inCollective is the ticket that the rank waits for, or 0; operation is what that one does.
	inCollective uint64
	operation    driver.Operation
	// inExchange is the step on the control lane while the rank waits in it, or 0.
	inExchange uint64
	// since is when the wait began, by the clock of the rank that has this status.
	since time.Time
}

// encode writes times as ages, since clocks of machines differ.
func (b *status) encode(now time.Time) []byte {
	age := uint64(0)
	if b.inCollective != 0 || b.inExchange != 0 {
		age = uint64(max(0, now.Sub(b.since)))
	}
	return encodeWords(b.submitted, b.inCollective, uint64(b.operation), b.inExchange, age)
}

// decodeStatus reads a status of the right size.
func decodeStatus(p []byte, now time.Time) status {
	var w [statusBytes / wordBytes]uint64
	decodeWords(p, w[:])
	return status{
		submitted: w[0], inCollective: w[1], operation: driver.Operation(w[2]), inExchange: w[3],
		since: now.Add(-time.Duration(w[4] & (1<<62 - 1))),
	}
}
