package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"symmem/driver"
)

// ErrProtocol is returned when the other side does not speak this protocol, or another version.
var ErrProtocol = errors.New("the rank does not speak symmem's protocol of control planes")

// kind says what a frame is.
type kind uint8

const (
	kindPost   kind = iota + 1 // one step of a track
	kindReport                 // a report on the fault lane
	kindStatus                 // what the rank is doing
	// kindFail: the rank has failed; its step is the control.Reason, and it holds the rank's status
	// and what it had seen complete.
	kindFail
	kindFailAck // the rank knows that the other has failed
	kindLeave   // the rank leaves; holds its last status
	kindValue   // one step under a name; holds the words and the name
	// kindComplete: a step under a name that a rank which is about to fail had seen complete; holds
	// the name.
	kindComplete
)

// track is a sequence of steps that all ranks make together.
type track uint8

const (
	trackControl    = track(driver.LaneControl)
	trackBackground = track(driver.LaneBackground)
	// trackCompare carries the digests of calls that are compared.
	trackCompare = track(driver.LaneFault)
	tracks       = trackCompare + 1
)

const (
	// headerBytes is a frame without its payload: kind, track, two zeros, the payload's size in
	// four bytes, the step in eight. All integers are little-endian.
	headerBytes = 16
	statusBytes = 5 * 8
	digestBytes = 8
	failBytes   = statusBytes + int(tracks)*8
	wordBytes   = len(driver.Words{}) * 8
)

// message is one frame.
type message struct {
	kind  kind
	track track
	step  uint64
	// payload holds what the kind says; it is owned by the message.
	payload []byte
}

// header is the checked header of a frame.
type header struct {
	message
	size int
}

// decodeHeader checks everything in a header before anything is believed.
func decodeHeader(b [headerBytes]byte) (header, error) {
	h := header{
		message: message{
			kind: kind(b[0]), track: track(b[1]), step: binary.LittleEndian.Uint64(b[8:]),
		},
	}
	size := binary.LittleEndian.Uint32(b[4:])
	least, most, ok := h.bounds()
	if !ok || b[2] != 0 || b[3] != 0 || h.track >= tracks || size < least || size > most {
		return header{}, fmt.Errorf("a frame of kind %d, track %d and %d bytes: %w",
			b[0], b[1], size, ErrProtocol)
	}
	h.size = int(size)
	return h, nil
}

// bounds gives the least and the greatest size of the payload.
func (m *message) bounds() (least, most uint32, ok bool) {
	switch m.kind {
	case kindPost:
		if m.track == trackCompare {
			return digestBytes, digestBytes, true
		}
		return 0, driver.MaxPayload, true
	case kindReport:
		return 0, driver.MaxPayload, true
	case kindStatus, kindLeave:
		return statusBytes, statusBytes, true
	case kindFailAck:
		return 0, 0, true
	case kindFail:
		return uint32(failBytes), uint32(failBytes), true
	case kindValue:
		return uint32(wordBytes) + 1, uint32(wordBytes) + driver.MaxValueName, true
	case kindComplete:
		return 1, driver.MaxValueName, true
	default:
		return 0, 0, false
	}
}

// encode makes the frame of a message.
func (m *message) encode() []byte {
	b := make([]byte, 0, headerBytes+len(m.payload))
	b = append(b, byte(m.kind), byte(m.track), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.payload)))
	b = binary.LittleEndian.AppendUint64(b, m.step)
	return append(b, m.payload...)
}

// receive reads one frame.
func receive(r io.Reader) (message, error) {
	var b [headerBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return message{}, err
	}
	h, err := decodeHeader(b)
	if err != nil {
		return message{}, err
	}
	h.payload = make([]byte, h.size)
	if _, err := io.ReadFull(r, h.payload); err != nil {
		return message{}, err
	}
	return h.message, nil
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
	var p []byte
	for _, v := range []uint64{
		b.submitted, b.inCollective, uint64(b.operation), b.inExchange, age,
	} {
		p = binary.LittleEndian.AppendUint64(p, v)
	}
	return p
}

// decodeStatus reads a status of the right size.
func decodeStatus(p []byte, now time.Time) status {
	return status{
		submitted:    binary.LittleEndian.Uint64(p),
		inCollective: binary.LittleEndian.Uint64(p[8:]),
		operation:    driver.Operation(binary.LittleEndian.Uint64(p[16:])),
		inExchange:   binary.LittleEndian.Uint64(p[24:]),
		since:        now.Add(-time.Duration(binary.LittleEndian.Uint64(p[32:]) & (1<<62 - 1))),
	}
}
