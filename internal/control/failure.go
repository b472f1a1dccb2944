package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
)

// complaint is what a rank tells the others when a step that all take together failed on it.
type complaint struct {
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
	c := complaint{Why: err.Error()}
	if lost := (*driver.RankLostError)(nil); errors.As(err, &lost) {
		c.Lost = lost.Ranks
	}
	encoded, _ := json.Marshal(c) // of strings and numbers, which cannot fail
	return encoded
}

// DecodeFailures returns the error of a step from what the ranks of a group have told, in group
// order: that of the first one which complains, or nil. Ranks are those of the world. A rank that
// was found lost by another one is lost for this one, too.
func DecodeFailures(ranks []int, told [][]byte, doing string) error {
	for r, encoded := range told {
		if len(encoded) == 0 {
			continue
		}
		var c complaint
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
