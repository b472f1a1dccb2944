package symmem

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"symmem/internal/rendezvous"
)

// awaitsOthers reports whether an error names absent ranks and some of these have not ended.
func awaitsOthers(err error, ended []*rendezvous.EndedError) bool {
	var absent *AbsentError
	return errors.As(err, &absent) && !covers(ended, absent.Ranks)
}

// leftError returns the error for a step that failed because ranks have left. If one of these ranks
// has stored a reason, the error is that reason.
func leftError(doing string, ended []*rendezvous.EndedError) error {
	for _, e := range ended {
		r := &report{}
		if e.Why == "" || json.Unmarshal([]byte(e.Why), r) != nil || !r.valid() {
			continue
		}
		switch because := e.How + " because of that"; {
		case r.Kind == kindLost && len(r.Lost.Ranks) > 0:
			return &RankLostError{
				Ranks: r.Lost.Ranks, Machines: r.Lost.Machines, Doing: doing + " (" + because + ")",
			}
		case r.Kind == kindLate && len(r.Late.Missing) > 0:
			return &AbsentError{
				Doing: doing, Waited: r.Late.Waited, Ranks: r.Late.Missing,
				Machines: r.Late.Machines, Activity: r.Late.Activity, Members: r.Late.Members,
				Err: errors.New(because),
			}
		}
		reported := *e
		reported.How = fmt.Sprintf("%s because of an error: %v", e.How, r.err())
		ended = slices.Clone(ended)
		ended[slices.Index(ended, e)] = &reported
	}
	return lostError(doing, ended)
}
