package symmem

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"symmem/internal/rendezvous"
)

func isAwaitingOthers(err error, ended []*rendezvous.EndedError) bool {
	var absent *AbsentError
	return errors.As(err, &absent) && !haveAllEnded(ended, absent.Ranks)
}

// newRankLeftError includes the reason that a rank has stored.
func newRankLeftError(operation string, ended []*rendezvous.EndedError) error {
	for _, e := range ended {
		r := &report{}
		if e.Reason == "" || json.Unmarshal([]byte(e.Reason), r) != nil || !r.hasRequiredFields() {
			continue
		}

		switch reason := e.Description + " because of that"; {
		case r.Kind == kindLost && len(r.Lost.Ranks) > 0:
			return &RankLostError{
				Ranks: r.Lost.Ranks, Machines: r.Lost.Machines, InCall: operation + " (" + reason + ")",
			}
		case r.Kind == kindLate && len(r.Late.Missing) > 0:
			return &AbsentError{
				InCall: operation, Waited: r.Late.Waited, Ranks: r.Late.Missing,
				Machines: r.Late.Machines, Activity: r.Late.Activity, Members: r.Late.Members,
				Err: errors.New(reason),
			}
		}

		reported := *e
		reported.Description = fmt.Sprintf("%s because of an error: %v", e.Description, r.toError())
		ended = slices.Clone(ended)
		ended[slices.Index(ended, e)] = &reported
	}

	return newRankLostError(operation, ended)
}
