package driver

import "symmem/event"

// Lister is implemented by a Communicator that can run several calls as one.
type Lister interface {
	// List returns a plan that runs two or more plans, in any order, as one call with one
	// comparison. If the plans cannot be combined, it returns ErrUnsupported on all ranks.
	List(plans []Plan) (Plan, error)
}

// ListOf returns a copy of the first call whose Digest and List cover all calls.
func ListOf(plans []Plan) Call {
	call := *plans[0].Prepared()
	texts := make([]string, len(plans))
	digest := uint64(len(plans))
	for i, p := range plans {
		d := p.Prepared().Describe()
		texts[i], digest = d.String(), mix(digest)+p.Prepared().Digest
	}

	call.List, call.Digest = event.ListText(texts), mix(digest)
	return call
}
