package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
)

// failureReport is what a rank sends to the others when a collective step has failed on it.
type failureReport struct {
	Why string `json:"why"`
	// Lost are the world ranks that it has found lost: the others may not have noticed yet.
	Lost []int `json:"lost,omitempty"`
}

// EncodeFailure encodes why a step failed on this rank, for DecodeFailures on the others. It is
// empty for nil.
func EncodeFailure(err error) []byte {
	if err == nil {
		return nil
	}
	c := failureReport{Why: err.Error()}
	if lost := (*driver.RankLostError)(nil); errors.As(err, &lost) {
		c.Lost = lost.Ranks
	}
	encoded, _ := json.Marshal(c) // of strings and numbers, which cannot fail
	return encoded
}

// DecodeFailures returns the error of a step from the reports of the ranks of a group, in group
// order: that of the first rank which reports a failure, or nil. Ranks are those of the world. A
// rank that another one has found lost is lost for this one, too.
func DecodeFailures(ranks []int, reports [][]byte, doing string) error {
	for r, encoded := range reports {
		if len(encoded) == 0 {
			continue
		}
		var c failureReport
		if err := json.Unmarshal(encoded, &c); err != nil {
			return fmt.Errorf("reading why rank %d could not: %w", ranks[r], err)
		}
		said := fmt.Sprintf("rank %d could not: %s", ranks[r], Printable(c.Why))
		foreign := func(lost int) bool { return !slices.Contains(ranks, lost) }
		if len(c.Lost) > 0 && !slices.ContainsFunc(c.Lost, foreign) {
			return &driver.RankLostError{Ranks: c.Lost, Doing: doing + ": " + said}
		}
		return errors.New(said)
	}
	return nil
}
