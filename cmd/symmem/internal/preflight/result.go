package preflight

import "symmem/cmd/symmem/internal/doctor"

// RankResult holds the results of one rank.
type RankResult struct {
	Rank             int                `json:"rank"`
	Node             string             `json:"node"`          // name of the machine
	GPU              string             `json:"gpu,omitempty"` // empty on the host backend
	Device           string             `json:"device"`
	Backend          string             `json:"backend"`
	Source           string             `json:"source"`
	Error            string             `json:"error,omitempty"` // ended this rank's checks early
	BlamedRanks      []int              `json:"lost,omitempty"`
	IsDeadlinePassed bool               `json:"expired,omitempty"` // when the error occurred
	Calls            []doctor.TrialCall `json:"calls"`
	Links            []Link             `json:"links"` // to ranks with higher numbers
	// Only the first rank of a node reports NodeProblems.
	NodeProblems []doctor.Finding `json:"machine,omitempty"`
}

// Link holds the results of messages that two ranks sent to each other.
type Link struct {
	From           int     `json:"from"`
	To             int     `json:"to"`
	BytesPerSecond float64 `json:"bytes_per_s"` // best measured speed in one direction
	WrongBytes     int64   `json:"wrong"`       // that From received; To reports an error instead
}
