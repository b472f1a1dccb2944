package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"

	"symmem/internal/ledger"
)

// ErrProtocol is wrapped by every error about an invalid payload.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	uint64Bytes = 8

	// wireVersion is the version of the encoding. Ranks refuse payloads of other versions.
	wireVersion = 3

	// MaxLedgers is the maximum number of ledgers (histories of pools) in one agreement.
	MaxLedgers = 64

	// MaxTag is the maximum size in bytes of Config.Tag.
	MaxTag = 200

	// maxPosition limits positions in ledgers, so that sums of two positions do not overflow.
	maxPosition = 1 << 62

	// No valid field is as large, in bytes. The limits protect the memory from faulty ranks.
	maxTagOrSide = 512
	maxCall      = 4 << 10
)

// phase is the purpose of one or more rounds.
type phase uint64

const (
	phaseVote   phase = iota + 1 // ranks compare the lengths and digests (hashes) of all ledgers
	phaseProbe                   // ranks search for the first difference
	phaseEvents                  // ranks compare the event at the first difference
	phaseDone                    // the agreement has ended
)

// message is one rank's message in a round. Only the fields for its phase are set.
type message struct {
	phase phase
	round uint64 // from 0

	// phaseEvents
	ledger   uint64 // id of the ledger that differs
	position uint64 // searchRange.sidePosition

	// phaseVote and phaseEvents
	tagOrSide     []byte // Config.Mode and Config.Tag, or the side of this rank; see sideEvent
	siteOrDigests []byte // Config.Site, or digests of requests

	// phaseVote
	flags uint64 // Config.Flags
	call  []byte // Config.Call
	votes []vote // sorted by ledger id

	// phaseProbe
	answers []answer
}

// encode returns the payload for the message.
func (m *message) encode() []byte {
	b := appendUint64s(nil, wireVersion, uint64(m.phase), m.round, m.ledger, m.position, m.flags)
	b = appendWithLength(b, m.tagOrSide)
	b = appendWithLength(b, m.call)
	b = appendWithLength(b, m.siteOrDigests)

	// Votes and answers have fixed sizes, so binary.Append cannot fail.
	b, _ = binary.Append(b, binary.LittleEndian, m.votes)
	b, _ = binary.Append(b, binary.LittleEndian, m.answers)
	return b
}

// decodeMessage decodes a payload. Errors wrap ErrProtocol.
func decodeMessage(payload []byte) (*message, error) {
	r := &reader{rest: payload}
	version := r.readUint64("version")
	if r.err == nil && version != wireVersion {
		return nil, protocolError("the peer uses version %d of the encoding", version)
	}

	m := &message{}
	m.phase = phase(r.readUint64("phase"))
	m.round = r.readUint64("round")
	m.ledger = r.readUint64("ledger")
	m.position = r.readUint64("position")
	m.flags = r.readUint64("flags")
	m.tagOrSide = r.readBytes(maxTagOrSide, "tag or side")
	m.call = r.readBytes(maxCall, "call")
	m.siteOrDigests = r.readBytes(maxSiteOrDigests, "call site or digests")
	switch m.phase {
	case phaseVote:
		m.votes = readVotes(r)
	case phaseProbe:
		m.answers = readList[answer](r, MaxLedgers*maxProbes, "answers")
	case phaseEvents: // has neither votes nor answers
	default: // phaseDone or an unknown phase
		r.fail("phase")
	}

	if len(r.rest) > 0 {
		r.fail("trailing bytes")
	}

	return m, r.err
}

// vote describes a rank's state of one ledger.
type vote struct {
	ID uint64
	ledger.Snapshot
	Pending Pending
}

func (v vote) isValid() bool {
	isPowerOfTwo := v.Stride > 0 && v.Stride&(v.Stride-1) == 0
	isOrdered := v.Agreed <= v.Position && v.Floor <= v.Position
	return isPowerOfTwo && isOrdered && v.Position <= maxPosition && v.Stride <= maxPosition
}

func readVotes(r *reader) []vote {
	votes := readList[vote](r, MaxLedgers, "votes")
	for i, v := range votes {
		isUnsorted := i > 0 && v.ID <= votes[i-1].ID
		if isUnsorted || !v.isValid() {
			r.fail("vote")
		}
	}

	return votes
}

// protocolError returns a formatted error that wraps ErrProtocol.
func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader decodes a payload: little-endian numbers, byte strings with a length prefix, and a final
// list. After an error, its methods return zero values.
type reader struct {
	rest []byte // not read yet; empty after an error
	err  error  // first error
}

// fail records an error about a named field, unless there was an earlier error.
func (r *reader) fail(field string) {
	if r.err == nil {
		r.err = protocolError("the payload has a malformed or missing field: %s", field)
	}

	r.rest = nil
}

func (r *reader) readUint64(field string) uint64 {
	if len(r.rest) < uint64Bytes {
		r.fail(field)
		return 0
	}

	v := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[uint64Bytes:]
	return v
}

// readBytes reads a byte string of at most limit bytes. The result aliases the payload.
func (r *reader) readBytes(limit int, field string) []byte {
	size := r.readUint64(field)
	if size > uint64(min(limit, len(r.rest))) {
		r.fail(field)
		return nil
	}

	v := r.rest[:size:size] // an append must not overwrite the rest
	r.rest = r.rest[size:]
	return v
}

// readList reads the rest of the payload as a list of at most limit elements. Values of type T must
// have a fixed size.
func readList[T any](r *reader, limit int, field string) []T {
	var zero T
	size := binary.Size(zero)
	length, remainder := len(r.rest)/size, len(r.rest)%size
	if remainder != 0 || length > limit {
		r.fail(field)
		return nil
	}

	list := make([]T, length)
	if _, err := binary.Decode(r.rest, binary.LittleEndian, list); err != nil {
		r.fail(field)
		return nil
	}

	r.rest = nil
	return list
}

func appendWithLength(dst, v []byte) []byte {
	dst = appendUint64s(dst, uint64(len(v)))
	return append(dst, v...)
}

func appendUint64s(dst []byte, values ...uint64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}

	return dst
}

// decodeUint64s decodes numbers that appendUint64s has encoded.
func decodeUint64s(b []byte) []uint64 {
	out := make([]uint64, len(b)/uint64Bytes)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[uint64Bytes*i:])
	}

	return out
}
