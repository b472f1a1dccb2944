package driver

import "strings"

// Lister is implemented by a Communicator that can run several calls as one.
type Lister interface {
	// List returns a plan that runs the given plans, two or more, as one call: they have one ticket
	// and are compared once. The calls may run in any order, so none may use the result of another.
	// List returns ErrUnsupported for plans that it cannot combine, on all ranks. Callers then launch
	// them one by one.
	List(plans []Plan) (Plan, error)
}

// ListOf returns the call that stands for several prepared calls in comparisons and descriptions:
// the first, with a digest and a description of all.
func ListOf(plans []Plan) Call {
	call := *plans[0].Prepared()
	texts := make([]string, len(plans))
	digest := uint64(len(plans))
	for i, p := range plans {
		d := p.Prepared().Describe()
		texts[i], digest = d.String(), mix(digest)+p.Prepared().Digest
	}
	call.List, call.Digest = strings.Join(texts, "; "), mix(digest)
	return call
}
