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

// message is sent from one rank to another as a frame: a header of 16 bytes, the name of the track
// and the payload. For example, the message {kindPost, "control", 2, []byte("abc")} becomes:
//
//	01                        kind
//	07                        length of the track's name
//	00 00                     always zero
//	03 00 00 00               size of the payload, little-endian
//	02 00 00 00 00 00 00 00   step
//	"control"                 name of the track
//	"abc"                     payload
type message struct {
	kind    kind
	track   track // only in kindPost and kindComplete
	step    uint64
	payload []byte
}

// kind determines the meaning of a message's step and payload.
type kind uint8

const (
	kindPost kind = iota + 1 // the sender's payload for a step
	// kindComplete announces the last step of a track in which the sender has received all ranks'
	// posts. A failing rank sends it before kindFail.
	kindComplete
	kindReport    // payload is a report about the group's failure
	kindStatus    // payload is a status; step is the number of the answered kindAskStatus, if any
	kindAskStatus // requests a kindStatus; step is the number of the request, from 1
	kindFail      // the sender has failed; payload is a status; step encodes the control.Reason
	kindFailAck   // acknowledges kindFail
	kindLeave     // the sender leaves the group; payload is its last status
)

// track names a sequence of steps, numbered from 1. In each step, every rank sends one post to
// every other rank.
type track string

const (
	trackControl    track = "control"
	trackBackground track = "background"
	trackCalls      track = "calls"
	trackCompare    track = "compare" // payloads are hashes of calls
	valuePrefix           = "value "  // of tracks of named values, such as "value loss"
)

// laneTracks omits driver.LaneFault, which uses kindReport.
var laneTracks = [driver.LaneFault]track{
	driver.LaneControl:    trackControl,
	driver.LaneBackground: trackBackground,
	driver.LaneCalls:      trackCalls,
}

const (
	headerBytes = 16
	wordBytes   = 8 // size of a number in a payload
	statusBytes = 5 * wordBytes
)

func (t track) isValue() bool { return strings.HasPrefix(string(t), valuePrefix) }

func (t track) isLane() bool { return slices.Contains(laneTracks[:], t) }

func (t track) isKnown() bool { return t == trackCompare || t.isValue() || t.isLane() }

// allowsPost reports whether a post on the track may have a payload of this size.
func (t track) allowsPost(payloadBytes int) bool {
	const valueBytes = len(driver.Words{}) * wordBytes
	switch {
	case t == trackCompare:
		return payloadBytes == wordBytes // a hash
	case t.isValue():
		return payloadBytes == valueBytes
	case t.isLane():
		return payloadBytes <= driver.MaxPayload
	}

	return false
}

// isValid reports whether the kind allows the track and a payload of this size.
func (m *message) isValid(payloadBytes int) bool {
	hasNoTrack := m.track == ""
	switch m.kind {
	case kindPost:
		return m.track.allowsPost(payloadBytes)
	case kindComplete:
		return m.track.isKnown() && payloadBytes == 0
	case kindReport:
		return hasNoTrack && payloadBytes <= driver.MaxPayload
	case kindStatus, kindFail, kindLeave:
		return hasNoTrack && payloadBytes == statusBytes
	case kindAskStatus, kindFailAck:
		return hasNoTrack && payloadBytes == 0
	}

	return false
}

// encode returns the message as a frame. The track's name must have at most 255 bytes.
func (m *message) encode() []byte {
	b := make([]byte, 0, headerBytes+len(m.track)+len(m.payload))
	b = append(b, byte(m.kind), byte(len(m.track)), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.payload)))
	b = binary.LittleEndian.AppendUint64(b, m.step)
	b = append(b, m.track...)
	return append(b, m.payload...)
}

// ErrProtocol means that another rank violates this version of the protocol.
var ErrProtocol = errors.New("the rank does not use this version of symmem's control protocol")

// readFrame reads and checks a message. It allocates no payload of invalid size, because the sender
// may be faulty.
func readFrame(r io.Reader) (message, error) {
	var b [headerBytes + math.MaxUint8]byte // header and name of the track
	header := b[:headerBytes]
	if _, err := io.ReadFull(r, header); err != nil {
		return message{}, err
	}

	m := message{kind: kind(header[0]), step: binary.LittleEndian.Uint64(header[8:16])}
	nameBytes := int(header[1])
	reserved := binary.LittleEndian.Uint16(header[2:4])
	payloadBytes := binary.LittleEndian.Uint32(header[4:8])
	if reserved != 0 || payloadBytes > driver.MaxPayload {
		return message{}, fmt.Errorf("invalid frame of kind %d with %d bytes: %w",
			m.kind, payloadBytes, ErrProtocol)
	}

	name := b[headerBytes : headerBytes+nameBytes]
	if _, err := io.ReadFull(r, name); err != nil {
		return message{}, err
	}

	m.track = track(name)
	if !m.isValid(int(payloadBytes)) {
		return message{}, fmt.Errorf("invalid frame of kind %d on track %q with %d bytes: %w",
			m.kind, m.track, payloadBytes, ErrProtocol)
	}

	m.payload = make([]byte, payloadBytes)
	if _, err := io.ReadFull(r, m.payload); err != nil {
		return message{}, err
	}

	return m, nil
}

func encodeWords(words ...uint64) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, words) // cannot fail
	return b
}

// decodeWords fills words from b, which must have wordBytes for each of them.
func decodeWords(b []byte, words []uint64) {
	_, _ = binary.Decode(b, binary.LittleEndian, words) // cannot fail
}

// status describes a rank's calls. Tickets are the sequence numbers of a group's collectives.
type status struct {
	submitted     uint64           // ticket of the last collective that the rank has submitted
	awaitedTicket uint64           // ticket of the collective in which the rank waits, or 0
	operation     driver.Operation // of awaitedTicket
	awaitedStep   uint64           // step of trackControl in which the rank waits, or 0
	since         time.Time        // when the wait began
}

// encode replaces since by the duration of the wait, because clocks differ between machines.
func (s *status) encode(now time.Time) []byte {
	waited := uint64(0)
	isWaiting := s.awaitedTicket != 0 || s.awaitedStep != 0
	if isWaiting {
		waited = uint64(max(0, now.Sub(s.since)))
	}

	return encodeWords(s.submitted, s.awaitedTicket, uint64(s.operation), s.awaitedStep, waited)
}

// decodeStatus decodes a payload of statusBytes.
func decodeStatus(payload []byte, now time.Time) status {
	var words [statusBytes / wordBytes]uint64
	decodeWords(payload, words[:])
	const waitedMask = 1<<62 - 1 // excludes negative durations, which a faulty rank may send
	waited := time.Duration(words[4] & waitedMask)
	return status{
		submitted:     words[0],
		awaitedTicket: words[1],
		operation:     driver.Operation(words[2]),
		awaitedStep:   words[3],
		since:         now.Add(-waited),
	}
}
