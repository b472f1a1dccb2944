package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
)

type failureReport struct {
	Why string `json:"why"`
	// Lost lists world ranks (numbers in the whole job).
	Lost []int `json:"lost,omitempty"`
	// Machines holds host names of lost ranks, by world rank.
	Machines map[int]string `json:"machines,omitempty"`
}

// EncodeFailure encodes the error of a failed call for DecodeFailures on other ranks. For nil, it
// returns nil.
func EncodeFailure(err error) []byte {
	if err == nil {
		return nil
	}

	report := failureReport{Why: err.Error()}
	if lost := (*driver.RankLostError)(nil); errors.As(err, &lost) {
		report.Lost, report.Machines = lost.Ranks, lost.Machines
	}

	encoded, _ := json.Marshal(report) // no error for strings and numbers
	return encoded
}

// DecodeFailures returns the first failure in reports, or nil. reports[i] comes from EncodeFailure
// on world rank ranks[i]. The error is a RankLostError if ranks contains all lost ranks of the
// failure.
func DecodeFailures(ranks []int, reports [][]byte, callText string) error {
	for r, encoded := range reports {
		if len(encoded) == 0 {
			continue
		}

		var report failureReport
		if err := json.Unmarshal(encoded, &report); err != nil {
			return fmt.Errorf("reading the failure of rank %d: %w", ranks[r], err)
		}

		text := fmt.Sprintf("rank %d failed: %s", ranks[r], Printable(report.Why))
		isOutsideRanks := func(lost int) bool { return !slices.Contains(ranks, lost) }
		if len(report.Lost) > 0 && !slices.ContainsFunc(report.Lost, isOutsideRanks) {
			for rank, name := range report.Machines {
				report.Machines[rank] = MachineName(name)
			}

			return &driver.RankLostError{
				Ranks: report.Lost, Machines: report.Machines, InCall: callText + ": " + text,
			}
		}

		return errors.New(text)
	}

	return nil
}
