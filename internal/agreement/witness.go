package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/internal/ledger"
)

// maxWindow is how many events from the first difference on are compared to say what kind of
// difference it is.
const maxWindow = 9

// maxNote bounds a note: the request digests of a window, or the site of a call.
const maxNote = max(8*maxWindow, ledger.MaxSiteBytes)

// The kinds of testimony, as the first byte of a witness.
const (
	witnessEvent     byte = iota + 1 // the event at the position, with its site
	witnessEnd                       // the history ends there
	witnessDigest                    // the digest there: the event is no longer kept
	witnessForgotten                 // not even that
)

// witness asks for what every rank has at the first difference. Where only a range is known, the
// digests at its end tell at least which ranks go together.
func (m *Machine) witness() ([]byte, *Verdict, error) {
	m.phase = phaseWitness
	in := m.doubt[0]
	source := m.history(in.id)
	msg := m.message()
	msg.ledger, msg.position = in.id, in.lo
	var value, note []byte
	if in.lo == in.top {
		value, note = eventTestimony(source, in.lo), window(source, in.lo)
	} else {
		msg.position = in.top + 1
		value = digestTestimony(source, in.top+1)
	}
	msg.witnesses = oneVariant(m.config.Rank, value, note)
	b, err := msg.encode()
	return b, nil, err
}

func eventTestimony(source frozen, at uint64) []byte {
	if e, ok := source.EventAt(at); ok {
		return ledger.AppendEvent([]byte{witnessEvent}, e, source.Site(e))
	}
	return digestTestimony(source, at+1)
}

func digestTestimony(source frozen, at uint64) []byte {
	if source.end < at {
		return appendWords([]byte{witnessEnd}, source.end)
	}
	if digest, ok := source.DigestAt(at); ok {
		return appendWords([]byte{witnessDigest}, at, digest)
	}
	return []byte{witnessForgotten}
}

// window lists what is requested from position at on.
func window(source frozen, at uint64) []byte {
	var out []byte
	for i := range uint64(maxWindow) {
		e, ok := source.EventAt(at + i)
		if !ok {
			break
		}
		out = appendWords(out, e.RequestDigest())
	}
	return out
}

func (m *Machine) afterWitness(msg *message) ([]byte, *Verdict, error) {
	in := m.doubt[0]
	exact := in.lo == in.top
	if msg.ledger != in.id || exact != (msg.position == in.lo) {
		return nil, nil, protocolError("stepping with events of position %d", msg.position)
	}
	d := m.newDivergence(KindPlacement, in.id)
	d.Position, d.Last = in.lo, in.top
	for _, w := range msg.witnesses.list {
		v, err := testify(w)
		if err != nil {
			return nil, nil, err
		}
		d.Variants = append(d.Variants, v)
	}
	d.Others = msg.witnesses.others
	if msg.witnesses.equal() && len(m.absent) == 0 {
		return nil, nil, protocolError("ranks with different digests at %d have the same event", in.lo)
	}
	d.conclude(msg.ranks.Len())
	if exact {
		d.Why = explain(d, msg.witnesses)
	}
	return nil, &Verdict{Divergence: d, Absent: m.absent}, nil
}

// testify decodes one witness.
func testify(w variant) (Variant, error) {
	v := Variant{Ranks: w.ranks}
	if len(w.value) == 0 {
		return v, protocolError("decoding an empty witness")
	}
	if len(w.note)%8 != 0 {
		return v, protocolError("decoding a window of %d bytes", len(w.note))
	}
	body := w.value[1:]
	switch kind := w.value[0]; {
	case kind == witnessEvent:
		e, site, err := ledger.DecodeEvent(body)
		if err != nil {
			return v, protocolError("%w", err)
		}
		v.Event, v.HasEvent, v.Site, v.What = e, true, site, e.String()
	case kind == witnessEnd && len(body) == 8:
		v.What = fmt.Sprintf("no event: history ends at %d", binary.LittleEndian.Uint64(body))
	case kind == witnessDigest && len(body) == 16:
		v.What = fmt.Sprintf("digest %016x at %d",
			binary.LittleEndian.Uint64(body[8:]), binary.LittleEndian.Uint64(body))
	case kind == witnessForgotten && len(body) == 0:
		v.What = "events that are no longer kept"
	default:
		return v, protocolError("decoding a witness of kind %d", kind)
	}
	return v, nil
}
